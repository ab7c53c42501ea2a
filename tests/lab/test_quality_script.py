"""`bench/quality.py` and `bench/choices.py` on a tiny run."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from snapens.cli import main
from snapens.lab.records.run import Run

BENCH = Path(__file__).parents[2] / "bench"
Y = np.arange(80) % 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny run with held-out images: the path of its data, and its folder."""
    tmp_path, random = tmp_path_factory.mktemp("quality"), np.random.default_rng(0)
    x = random.integers(0, 256, (80, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", x_train=x[:60], y_train=Y[:60], x_test=x[60:], y_test=Y[60:])
    data, run = str(tmp_path / "tiny.npz"), str(tmp_path / "run")
    settings = "--network small --dataset arrays --epochs 4 --cycles 2 --batch 8 --held-out 20 --ema 0.5"
    assert main(["train", *settings.split(), "--data", data, "--out", run]) == 0
    return data, run


def test_every_predictor_of_a_run_is_measured(trained, tmp_path, monkeypatch, capsys):
    (data, run), out = trained, tmp_path / "out"
    arguments = [run, "--data", data, "--outside", "arrays", "--device", "cpu", "--commit", "abc", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["quality.py", *arguments])
    runpy.run_path(str(BENCH / "quality.py"), run_name="__main__")
    assert "weight average" in capsys.readouterr().out

    [path] = out.iterdir()
    found, p, labels = json.loads(path.read_text()), Run(run).outputs().probabilities, Y[60:]
    predictors = found["predictors"]
    assert list(predictors) == [
        "last snapshot",
        "all snapshots",
        "fitted",
        "fitted, drop-early",
        "weight average",
        "without averaging",
    ]
    for name, mean in (("last snapshot", p[-1]), ("all snapshots", p.mean(0))):
        assert predictors[name]["error"] == np.mean(mean.argmax(-1) != labels)
        assert predictors[name]["nll"] == pytest.approx(-np.log(mean[np.arange(20), labels]).mean(), rel=1e-4)
    held_out, marks = Run(run).outputs("held_out").probabilities[-1], Run(run).outputs("held_out").labels
    assert predictors["last snapshot"]["held_out_error"] == np.mean(held_out.argmax(-1) != marks)
    assert predictors["last snapshot"]["outside_auroc"] == 0.5  # the same images
    assert found["members"] == [np.mean(one.argmax(-1) != labels) for one in p]
    assert (found["commit"], found["training"]["device"][:3]) == ("abc", "CPU")


def test_every_choice_of_members_is_compared_with_the_mean_of_all(trained, tmp_path, monkeypatch):
    _, run = trained
    monkeypatch.setattr("sys.argv", ["choices.py", run, "--out", str(tmp_path)])
    runpy.run_path(str(BENCH / "choices.py"), run_name="__main__")
    [path] = tmp_path.iterdir()
    found, p, labels = json.loads(path.read_text()), Run(run).outputs().probabilities, Y[60:]
    assert list(found["choices"]) == [
        "the last m",
        "all but harmful early ones",
        "greedy selection",
        "weights by NLL",
    ]
    for values in found["choices"].values():
        weighted = np.einsum("m,mec->ec", values["weights"], p[[member - 1 for member in values["members"]]])
        better = (p.mean(0).argmax(-1) != labels) * 1.0 - (weighted.argmax(-1) != labels)
        assert values["test_error_gain"]["mean"] == pytest.approx(better.mean())
        assert values["test_error_gain"]["standard_error"] == pytest.approx(better.std(ddof=1) / np.sqrt(20))
