"""`bench/quality.py` on a tiny run."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from snapens.cli import main
from snapens.lab.records.run import Run

SCRIPT = Path(__file__).parents[2] / "bench/quality.py"


def test_every_predictor_of_a_run_is_measured(tmp_path, monkeypatch, capsys):
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (80, 8, 8), dtype=np.uint8)
    y = np.arange(80) % 4
    np.savez(tmp_path / "tiny.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    data, run = str(tmp_path / "tiny.npz"), str(tmp_path / "run")
    settings = "--network small --dataset arrays --epochs 4 --cycles 2 --batch 8 --held-out 20 --ema 0.5"
    assert main(["train", *settings.split(), "--data", data, "--out", run]) == 0
    out = tmp_path / "out"
    arguments = [run, "--data", data, "--outside", "arrays", "--device", "cpu", "--commit", "abc", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["quality.py", *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert "weight average" in capsys.readouterr().out

    [path] = out.iterdir()
    found, p, labels = json.loads(path.read_text()), Run(run).outputs().probabilities, y[60:]
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
