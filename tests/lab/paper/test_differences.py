"""The paired differences of the ledger, against a plain loop over the test images."""

from dataclasses import replace

import numpy as np
import pytest
from finished import LABELS, SINGLE, SNAPSHOT, finished, softmax

from snapens.errors import DamagedError
from snapens.lab.paper import cells as paper
from snapens.lab.paper import differences, ledger
from snapens.lab.paper.differences import Paired

ONE, TWO = "densenet40-cifar100-single-seed0", "densenet40-cifar100-snapshot-0.2-seed0"


@pytest.fixture(autouse=True)
def data_sets_of_forty_test_images(monkeypatch):
    monkeypatch.setattr(paper, "IMAGES", {name: (train, 40) for name, (train, _) in paper.IMAGES.items()})


def recorded(folder, *recipes, **options):
    runs = [finished(folder, recipe, **options) for recipe in recipes]
    for run in runs:
        ledger.record(run, folder / "results", "c")
    return runs, folder / "results"


def wrong(run, members):
    p = softmax(run)
    return [int(row.argmax() != label) for row, label in zip((p if members else p[-1:]).mean(0), LABELS, strict=True)]


def test_every_two_predictors_have_a_paired_difference(tmp_path):
    (single, snapshot), results = recorded(tmp_path, SINGLE, SNAPSHOT)
    assert differences.record([snapshot, single], results) == results / "differences.json"
    found = differences.read(results)
    assert len(found) == 6  # of 4 predictors
    points = [100 * (a - b) for a, b in zip(wrong(single, 0), wrong(snapshot, 1), strict=True)]
    measured = found[f"{ONE} last minus {TWO} ensemble"]
    assert measured.points == pytest.approx(np.mean(points), abs=1e-4)
    assert measured.standard_error == pytest.approx(np.std(points) / 40**0.5, abs=1e-4)
    assert measured.standard_error > 0
    assert f"{TWO} last minus {TWO} ensemble" in found


def test_a_difference_is_found_in_both_directions():
    found = {"a last minus b last": Paired(1.5, 0.5)}
    assert differences.between("a last", "b last", found) == Paired(1.5, 0.5)
    assert differences.between("b last", "a last", found) == Paired(-1.5, 0.5)
    assert differences.between("a last", "b ensemble", found) is None


def test_a_run_of_one_snapshot_is_one_predictor(tmp_path):
    runs, results = recorded(tmp_path, paper.find("resnet50-imagenet-single").recipe)
    differences.record(runs, results)
    assert differences.read(results) == {}


def test_runs_with_other_test_images_are_not_compared(tmp_path):
    runs, results = recorded(tmp_path, SINGLE)
    others, _ = recorded(tmp_path, SNAPSHOT, labels=LABELS[::-1].copy())
    differences.record([*runs, *others], results)
    assert sorted(differences.read(results)) == [f"{ONE} last minus {ONE} ensemble", f"{TWO} last minus {TWO} ensemble"]


def test_differences_of_runs_that_are_not_given_stay(tmp_path):
    runs, results = recorded(tmp_path, SINGLE, SNAPSHOT)
    differences.record(runs, results)
    before = differences.read(results)
    other, _ = recorded(tmp_path, replace(SINGLE, seed=1))
    differences.record(other, results)
    after = differences.read(results)
    assert after.keys() - before.keys() == {f"{ONE[:-1]}1 last minus {ONE[:-1]}1 ensemble"}
    assert {pair: after[pair] for pair in before} == before


def test_an_overwritten_run_loses_its_differences_from_runs_that_are_not_given(tmp_path):
    runs, results = recorded(tmp_path, SINGLE, SNAPSHOT)
    differences.record(runs, results)
    differences.record(runs[:1], results, overwrite=True)
    assert sorted(differences.read(results)) == [f"{ONE} last minus {ONE} ensemble", f"{TWO} last minus {TWO} ensemble"]


def test_differences_that_do_not_match_the_ledger_are_rejected_and_recorded_again(tmp_path):
    runs, results = recorded(tmp_path, SINGLE, SNAPSHOT)
    path = differences.record(runs, results)
    content = path.read_text()
    for damage in (
        lambda: path.write_text(content.replace('{"points": ', '{"points": 9', 1)),
        lambda: path.write_text(content.replace(" last minus", " first minus", 1)),
        lambda: (results / f"{ONE}.json").unlink(),
    ):
        damage()
        with pytest.raises(DamagedError, match=r"must match the entries of its runs, but .* does not: record these"):
            differences.read(results)
    differences.record(runs[1:], results)
    assert sorted(differences.read(results)) == [f"{TWO} last minus {TWO} ensemble"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": 2}', '{"format": true}', '{"format": 1, "a minus b": {"points": 1}}'],
)
def test_a_file_that_is_not_what_was_written_is_rejected(tmp_path, content):
    (tmp_path / "differences.json").write_text(content)
    for use in (lambda: differences.read(tmp_path), lambda: differences.record([], tmp_path)):
        with pytest.raises(
            DamagedError, match=r"differences.json must hold differences of the ledger, got .*: restore"
        ):
            use()


def test_a_ledger_without_the_file_has_no_differences(tmp_path):
    assert differences.read(tmp_path / "nowhere") == {}
