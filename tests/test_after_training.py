"""The commands and the code of the pages about finished runs, on a tiny run of `snapens train`."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from test_pages import blocks, stand_ins

from snapens.cli import main
from snapens.lab.records.run import Run

PAGES = Path(__file__).parent.parent / "docs/how-to"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table of numbers, and a finished run on it in runs/t."""
    folder = tmp_path_factory.mktemp("work")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4))
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64) + (x[:, 2] > 1)
    np.savez(folder / "rows.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    np.savetxt(folder / "rows.csv", x[:5], delimiter=",")
    options = ["--network", "mlp", "--epochs", "6", "--cycles", "3", "--batch", "30", "--device", "cpu"]
    train = ["train", "--dataset", "arrays", "--data", str(folder / "rows.npz"), "--out", str(folder / "runs/t")]
    assert main([*train, *options]) == 0
    return folder


def marked(page):
    """The blocks of a page that need a run of `snapens train`."""
    return re.findall(r"<!-- not run: .*test_after_training.*? -->\n```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_every_command_after_training_works_on_the_same_folder(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    commands = (
        "combine runs/t --format json",
        "evaluate runs/t",
        "evaluate runs/t --format json",
        "predict runs/t rows.csv --format json --device cpu",
        "report runs/t",
        "export runs/t --raw-inputs --prefixes",
    )
    shown = {}
    for command in commands:
        capsys.readouterr()
        assert main(command.split()) == 0, command
        shown[command] = capsys.readouterr().out
    rows = json.loads(shown["predict runs/t rows.csv --format json --device cpu"])
    assert len(rows) == 5
    assert {"class", "probability", "entropy", "mutual_information", "members_used"} <= set(rows[0])
    for name in ("runs/t/combination.json", "runs/t/report.html", "t.onnx", "t.onnx.md"):
        assert (folder / name).is_file(), name


def test_a_run_is_an_ensemble_that_takes_raw_examples(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = {"examples": torch.from_numpy(np.load("rows.npz")["x_test"][:7])}
    (block,) = marked(PAGES / "predict-and-deploy.md")
    exec(block, names)
    assert names["probabilities"].shape == (7, 3)
    torch.testing.assert_close(names["probabilities"].sum(1), torch.ones(7))


def test_a_student_is_trained_from_python(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (block,) = marked(PAGES / "one-network.md")
    exec(block, {})
    assert Run("runs/student").finished


def test_the_service_answers_in_batches_and_rejects_what_is_not_rows_of_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = stand_ins()
    for _, code in blocks((PAGES / "predict-and-deploy.md").read_text(), "python"):
        exec(code, names)
    rows = torch.randn(300, 8, generator=torch.Generator().manual_seed(1))
    found = names["answers"](rows.tolist())
    p = names["served"].predict([rows])  # which exits early as well
    assert [answer["class"] for answer in found] == [names["CLASSES"][k] for k in p.argmax(-1)]
    np.testing.assert_allclose([answer["probability"] for answer in found], p.max(-1).values, atol=1e-6)
    for wrong in ([], 5, None, [[1, 2]], [[float("nan")] * 8], [[1], [1, 2]], {"a": 1}, ["a"]):
        with pytest.raises((TypeError, ValueError, RuntimeError)):  # the handler answers with the status 400
            names["answers"](wrong)
