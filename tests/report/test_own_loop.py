"""Reports of folders that a loop of the user's own wrote: snapshots and outputs, but no recipe and no log."""

import csv
import json
import re

import folders
import pytest
import torch
from plain import words

from snapens import Combination, CyclicCosine, Outputs, SnapshotEnsembler
from snapens.errors import MismatchError, StoreError
from snapens.lab.records.run import Run
from snapens.lab.records.runs import runs_in
from snapens.report import page
from snapens.report.pieces import pieces
from snapens.report.summary import summarise


def made(path, *, parts=("test",), members=3, examples=120, seed=0, classes=3):
    """The folder of a loop, with outputs for some parts of the data."""
    model = torch.nn.Linear(2, classes)
    ensembler = SnapshotEnsembler(
        model, torch.optim.SGD(model.parameters(), lr=0.1), CyclicCosine(4 * members, members), store=path
    )
    for _ in range(4 * members):
        model(torch.ones(1, 2)).sum().backward()
        ensembler.optimizer.step()
        ensembler.step()
    run = Run(path)
    for k, part in enumerate(parts):
        labels = folders.labels(examples, classes, seed=7 + k)
        found = folders.log_probabilities(labels, members, classes, seed).numpy()
        Outputs(tuple((run.identity, step) for step in run.snapshots.steps), found, labels).save(path, part=part)
    return run


def test_a_page_says_what_it_cannot_know(tmp_path):
    run = made(tmp_path / "own")
    text = words(page.render([run]))
    assert "a training loop of your own · own" in text
    assert "neither a recipe nor a log" in text
    for unknown in (
        "the training loss",
        "the training time",
        "the names of the classes",
        "more snapshots were planned",
    ):
        assert unknown in text.partition("The following is therefore unknown:")[2]
    error = 100 * run.outputs().ensemble_errors[-1]
    assert f"Test error: ensemble {error:.2f} %, last snapshot " in text
    assert 'save outputs with part="held_out" and write the report again' in text.replace("&#34;", '"')
    assert "test example" in text
    assert not re.search(r"unfinished|epoch,|--held-out|--curves|Learning rate|images\b|None|nan", text)


def test_members_and_classes_are_those_of_the_outputs(tmp_path):
    run = made(tmp_path / "own", members=4)
    summary = summarise([run])
    assert summary.focus.steps == (4, 8, 12, 16)
    assert summary.focus.classes == ("class 0", "class 1", "class 2")
    assert [score.error for score in summary.focus.members] == run.outputs().member_errors
    assert (summary.focus.minima, summary.focus.rates(), summary.focus.missing) == ((), ([], []), 0)
    assert summary.details.evidence.restarts == ("warm",) * 3
    assert summary.baseline is None


def test_held_out_examples_alone_are_named_as_such(tmp_path):
    run = made(tmp_path / "own", parts=("held_out",))
    text = words(page.render([run]))
    error = 100 * run.outputs("held_out").ensemble_errors[-1]
    assert f"Held-out error: ensemble {error:.2f} %, last snapshot " in text
    assert (
        "All numbers on this page are measured on held-out examples, because there are no outputs for test examples."
        in text
    )
    assert "The findings, like all numbers on this page, are based on 120 held-out examples. You may use them" in text
    assert "held-out example " in text
    assert not re.search("[Tt]est (error|example [0-9])", text)


def test_with_both_parts_errors_are_of_the_test_and_findings_of_the_held_out_examples(tmp_path):
    run = made(tmp_path / "own", parts=("test", "held_out"))
    summary = summarise([run])
    assert summary.focus.part == "test"
    assert summary.focus.ensemble.error == run.outputs().ensemble_errors[-1]
    assert list(summary.details.evidence.member_errors) == run.outputs("held_out").member_errors


@pytest.mark.parametrize(("parts", "got"), [((), "none"), (("shifted", "far"), "far, shifted")])
def test_a_folder_without_outputs_for_either_part_is_rejected_with_the_parts_that_it_has(tmp_path, parts, got):
    run = made(tmp_path / "own", parts=parts)
    wanted = rf"outputs of the part 'test' or 'held_out', got {got}: save them with Ensemble\.load\('.*own', model\)\."
    with pytest.raises(StoreError, match=wanted):
        page.render([run])


def test_a_run_of_the_lab_that_lost_its_recipe_is_not_taken_for_a_loop(tmp_path):
    run = folders.made(tmp_path / "run")
    (run.path / "recipe.json").unlink()
    with pytest.raises(StoreError, match=r"run must be a folder that holds recipe.json, got .*run"):
        page.render([Run(run.path)])


def test_several_loops_are_compared(tmp_path):
    runs = [made(tmp_path / "all" / name, seed=seed) for seed, name in enumerate("ba")]
    assert [run.path.name for run in runs_in(tmp_path / "all")] == ["a", "b"]
    summary = summarise(runs)
    assert (summary.focus.name, summary.methods) == ("a", ())
    text = words(page.render(runs))
    assert "it is unknown whether they have the same examples" in text
    for run in runs:
        assert f"{100 * run.outputs().ensemble_errors[-1]:.2f}" in text.partition("Each run")[2]


def test_a_loop_can_be_compared_with_a_run_of_the_lab_if_the_labels_are_equal(tmp_path):
    lab, own = folders.made(tmp_path / "lab"), made(tmp_path / "own", classes=4, examples=40)
    summary = summarise([lab, own], focus="own")
    assert (summary.focus.name, [method.runs for method in summary.methods]) == ("own", [1])
    assert summarise([lab, own], focus="lab").focus.classes == folders.CLASSES
    with pytest.raises(MismatchError, match="runs must have been tested on the same images"):
        summarise([lab, made(tmp_path / "other", classes=4, examples=41)])


@pytest.mark.parametrize("form", ["csv", "json", "svg"])
def test_parts_of_a_report_are_written_without_what_is_not_known(tmp_path, form):
    run = made(tmp_path / "own")
    Combination(run.outputs().members[1:], weights=(1, 3), temperature=1.5, exit_threshold=0.9).save(run.path)
    written = {path.stem: path for path in pieces([run], tmp_path / "pieces", form)}
    assert "training" not in written
    if form == "svg":
        assert {"snapshots", "last", "exits", "reliability"} <= written.keys()
        return
    rows = {
        name: json.loads(path.read_text()) if form == "json" else list(csv.DictReader(path.read_text().splitlines()))
        for name, path in written.items()
    }
    unknown = "" if form == "csv" else None
    assert [row["epoch"] for row in rows["snapshots"]] == [unknown] * 3
    assert [rows["runs"][0][name] for name in ("method", "seed", "training_seconds")] == [unknown] * 3
    assert rows["answer"][-1]["predictor"] == "fitted combination"
    shown = [[float(row[name]) for name in ("snapshot", "step", "weight")] for row in rows["combination"]]
    assert shown == [[2, 8, 0.25], [3, 12, 0.75]]
    assert {(float(row["temperature"]), float(row["exit_threshold"])) for row in rows["combination"]} == {(1.5, 0.9)}
