"""`bench/quality.py` and `bench/choices.py` on a tiny run."""

import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

from snapens import Combination
from snapens.cli import main
from snapens.errors import ArgumentError, MismatchError
from snapens.lab.records.run import Run

BENCH = Path(__file__).parents[2] / "bench"
Y = np.arange(80) % 4


SETTINGS = "--network small --dataset arrays --epochs 4 --cycles 2 --batch 8 --ema 0.5"


def train(data, run, *more):
    assert main(["train", *SETTINGS.split(), *more, "--data", data, "--out", run]) == 0


def measured(monkeypatch, data, out, *arguments):
    """The JSON of one call of the script, by the names of its files."""
    common = ["--commit", "abc", "--device", "cpu"]  # git does not know this commit
    monkeypatch.setattr("sys.argv", ["quality.py", *arguments, "--data", data, "--out", str(out), *common])
    runpy.run_path(str(BENCH / "quality.py"), run_name="__main__")
    return {path.name: json.loads(path.read_text()) for path in out.iterdir()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny run with held-out images: the path of its data, and its folder."""
    tmp_path, random = tmp_path_factory.mktemp("quality"), np.random.default_rng(0)
    x = random.integers(0, 256, (80, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", x_train=x[:60], y_train=Y[:60], x_test=x[60:], y_test=Y[60:])
    data, run = str(tmp_path / "tiny.npz"), str(tmp_path / "run")
    train(data, run, "--held-out", "20")
    return data, run


@pytest.fixture(scope="module")
def other(trained, tmp_path_factory):
    """The same with another seed."""
    run = str(tmp_path_factory.mktemp("quality") / "other")
    train(trained[0], run, "--held-out", "20", "--seed", "1")
    return run


def test_every_predictor_of_a_run_is_measured(trained, tmp_path, monkeypatch, capsys):
    (data, run), out = trained, tmp_path / "out"
    [found] = measured(monkeypatch, data, out, run, "--outside", "arrays").values()
    assert "weight average" in capsys.readouterr().out

    p, labels = Run(run).outputs().probabilities, Y[60:]
    predictors = found["predictors"]
    names = ["last snapshot", "all snapshots", "fitted", "weight average", "without averaging"]
    assert list(predictors) == names
    for name, mean in (("last snapshot", p[-1]), ("all snapshots", p.mean(0))):
        assert predictors[name]["error"] == np.mean(mean.argmax(-1) != labels)
        assert predictors[name]["nll"] == pytest.approx(-np.log(mean[np.arange(20), labels]).mean(), rel=1e-4)
    held_out, marks = Run(run).outputs("held_out").probabilities[-1], Run(run).outputs("held_out").labels
    assert predictors["last snapshot"]["held_out_error"] == np.mean(held_out.argmax(-1) != marks)
    assert predictors["last snapshot"]["outside_auroc"] == 0.5  # the same images
    assert found["members"] == [np.mean(one.argmax(-1) != labels) for one in p]
    assert (found["commit"], found["training"]["device"][:3], found["seeds"]) == ("abc", "CPU", [0])


def test_the_time_and_the_errors_of_each_snapshot_are_recorded(trained, tmp_path, monkeypatch):
    data, run = trained
    [found] = measured(monkeypatch, data, tmp_path, run).values()
    lines = [json.loads(line) for line in (Path(run) / "log.jsonl").read_text().splitlines()]
    snapshots = [line for line in lines if line.get("event") == "snapshot"]
    p, labels = Run(run).outputs().probabilities, Y[60:]
    assert found["history"] == [
        {
            "seconds": snapshots[k]["seconds"],
            "error": snapshots[k]["test_error"],
            "error_so_far": np.mean(p[: k + 1].mean(0).argmax(-1) != labels),
        }
        for k in range(2)
    ]


def test_the_members_of_several_runs_are_pooled(trained, other, tmp_path, monkeypatch):
    data, run = trained
    files = measured(monkeypatch, data, tmp_path, run, other, "--together", "--outside", "arrays")
    [(name, found)] = files.items()
    assert name.endswith("-seed0-1.json")
    assert found["seeds"] == [0, 1]
    assert list(found["predictors"]) == ["last snapshot", "all snapshots", "fitted"]

    first, second = (Run(path).outputs().probabilities for path in (run, other))
    labels, every = Y[60:], found["predictors"]["all snapshots"]
    errors = [np.mean(p.argmax(-1) != labels) for p in (first[0], second[0], first[1], second[1])]
    assert found["members"] == errors  # the runs take turns
    mean = np.concatenate([first, second]).mean(0)
    assert every["error"] == np.mean(mean.argmax(-1) != labels)
    assert every["nll"] == pytest.approx(-np.log(mean[np.arange(20), labels]).mean(), rel=1e-4)
    assert (every["mean_members"], every["outside_auroc"]) == (4, 0.5)
    held_out = sum(Run(path).outputs("held_out").probabilities.sum(0) for path in (run, other))
    assert every["held_out_error"] == np.mean(held_out.argmax(-1) != Run(run).outputs("held_out").labels)

    one, two = (Run(path).finish_event["seconds"] for path in (run, other))
    assert found["training"]["seconds"] == pytest.approx(one + two)
    third = found["history"][2]  # the first snapshot of the second run
    assert one < third["seconds"] < one + two
    assert third["error"] == errors[1]
    assert third["error_so_far"] == np.mean((first.sum(0) + second[0]).argmax(-1) != labels)


def test_only_runs_that_differ_in_their_seeds_are_pooled(trained, tmp_path, monkeypatch):
    data, run = trained
    smoothed = str(tmp_path / "smoothed")
    train(data, smoothed, "--held-out", "20", "--seed", "1", "--label-smoothing", "0.1")
    for second in (run, smoothed):
        with pytest.raises(ArgumentError, match=r"runs must have different seeds and no other difference, got .*run, "):
            measured(monkeypatch, data, tmp_path / "out", run, second, "--together")


@pytest.mark.parametrize(("name", "value"), [("pack", 2), ("device", "another GPU"), ("torch", "2.0")])
def test_the_times_of_runs_in_a_pack_or_on_other_hardware_are_not_added(
    trained, other, tmp_path, monkeypatch, name, value
):
    data, run = trained
    finish_event = Run.finish_event.fget

    def changed(run):
        return finish_event(run) | ({name: value} if str(run.path) == other else {})

    monkeypatch.setattr(Run, "finish_event", property(changed))
    with pytest.raises(ArgumentError, match=rf"trained one at a time \(pack 1\) on the same .*'{name}': '?{value}"):
        measured(monkeypatch, data, tmp_path / "out", run, other, "--together")


def test_the_commit_must_be_that_of_the_code_that_trained_the_run(trained, tmp_path, monkeypatch):
    data, run = trained
    monkeypatch.setattr("snapens.lab.paper.ledger.is_of_commit", lambda run, commit: False)
    with pytest.raises(MismatchError, match=r"commit must be that of the code that trained .*run, got abc"):
        measured(monkeypatch, data, tmp_path / "out", run)


def test_results_of_another_commit_are_not_replaced(trained, tmp_path, monkeypatch):
    data, run = trained
    [name] = measured(monkeypatch, data, tmp_path, run)
    assert list(measured(monkeypatch, data, tmp_path, run)) == [name]  # the same commit
    before = (tmp_path / name).read_text().replace('"abc"', '"def"')
    (tmp_path / name).write_text(before)
    with pytest.raises(ArgumentError, match=r"no results of another commit, got .*json of commit def: remove it"):
        measured(monkeypatch, data, tmp_path, run)
    assert (tmp_path / name).read_text() == before


def test_a_run_that_is_not_finished_is_rejected(trained, tmp_path, monkeypatch):
    data, run = trained
    part = tmp_path / "part"
    shutil.copytree(run, part)
    log = part / "log.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if '"finished"' not in line))
    with pytest.raises(ArgumentError, match=r"runs must be finished, got .*part"):
        measured(monkeypatch, data, tmp_path / "out", str(part))


def test_without_held_out_images_the_combination_of_another_run_is_used(trained, tmp_path, monkeypatch):
    data, run = trained
    final, source = str(tmp_path / "final"), str(tmp_path / "source")
    shutil.copytree(run, source)
    train(data, final, "--held-out", "0")
    [found] = measured(monkeypatch, data, tmp_path / "before", final).values()
    assert list(found["predictors"]) == ["last snapshot", "all snapshots", "weight average", "without averaging"]

    temperature = 1.5
    Combination(Run(source).snapshots.members, temperature=temperature).save(source)
    assert main(["combine", final, "--like", source]) == 0
    [found] = measured(monkeypatch, data, tmp_path / "after", final).values()
    mean = Run(final).outputs().probabilities.mean(0) ** (1 / temperature)
    nll = -np.log((mean / mean.sum(-1, keepdims=True))[np.arange(20), Y[60:]]).mean()
    assert found["predictors"]["fitted"]["nll"] == pytest.approx(nll, rel=1e-4)
    assert nll != pytest.approx(found["predictors"]["all snapshots"]["nll"], rel=1e-3)
    assert "held_out_error" not in {key for values in found["predictors"].values() for key in values}


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
