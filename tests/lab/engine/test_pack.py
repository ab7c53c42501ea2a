"""The pack as a whole: jobs with nothing left to do, and when it stops."""

import shutil

import numpy as np
import pytest
import tiny
import torch

from snapens.errors import DamagedError, MismatchError
from snapens.lab.engine import training as training_module
from snapens.lab.engine.pack import measure_between, prepare, train, unfinished
from snapens.lab.records import gallery
from snapens.lab.records.run import Run

CPU = torch.device("cpu")


def test_a_job_is_left_until_its_steps_its_outputs_and_its_curves_are_complete(tmp_path):
    jobs = [(tiny.recipe(), tmp_path / "run"), (tiny.recipe(seed=1), tmp_path / "other")]
    assert unfinished(jobs) == jobs
    trainings = prepare(jobs[:1], tiny.load, CPU)
    train(trainings)
    assert unfinished(jobs) == jobs[1:]
    assert unfinished(jobs, curves=True) == jobs
    measure_between(trainings)
    assert unfinished(jobs, curves=True) == jobs[1:]
    for path in (tmp_path / "run").glob("outputs*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert unfinished(jobs) == jobs


def test_a_run_whose_last_snapshot_is_lost_is_continued_from_the_state_before(tmp_path, caplog):
    jobs = [(tiny.recipe(cycles=3, epochs=6), tmp_path / "run")]
    train(prepare(jobs, tiny.load, CPU))
    run, manifest = Run(tmp_path / "run"), tmp_path / "run/manifest.json"
    steps, weights = run.snapshots.steps, run.snapshots.load(30)
    shutil.copy(tmp_path / "run/manifest.previous.json", manifest)
    assert run.snapshots.steps == steps[:2] == (10, 20)
    assert not run.finished
    assert unfinished(jobs) == jobs
    train(prepare(jobs, tiny.load, CPU, resume=True))
    assert "state.json must belong to the snapshots in manifest.json, which lacks those of the steps 30" in caplog.text
    assert Run(tmp_path / "run").finished
    assert tiny.equal(Run(tmp_path / "run").snapshots.load(30), weights)
    assert unfinished(jobs) == []


def test_a_run_without_a_state_for_its_snapshots_explains_what_to_do(tmp_path):
    jobs = [(tiny.recipe(), tmp_path / "run")]
    train(prepare(jobs, tiny.load, CPU))
    shutil.copy(tmp_path / "run/manifest.previous.json", tmp_path / "run/manifest.json")
    (tmp_path / "run/state/state.previous.json").unlink()
    with pytest.raises(
        DamagedError, match=r"of the steps 20: restore manifest\.json, or train the run again in another"
    ):
        prepare(jobs, tiny.load, CPU, resume=True)


@pytest.mark.parametrize("damage", ["lost", "altered"])
def test_the_gallery_of_a_finished_run_is_rebuilt_if_it_is_lost_or_damaged(tmp_path, damage):
    jobs = [(tiny.recipe(), tmp_path / "run")]
    train(prepare(jobs, tiny.load, CPU))
    path, stored = tmp_path / "run/gallery.json", gallery.read(Run(tmp_path / "run"))
    path.unlink() if damage == "lost" else path.write_text("{}")
    assert unfinished(jobs) == jobs
    train(prepare(jobs, tiny.load, CPU, resume=True))
    again = gallery.read(Run(tmp_path / "run"))
    assert again.indices.tolist() == stored.indices.tolist()
    assert np.array_equal(again.pixels, stored.pixels)
    assert unfinished(jobs) == []


def test_damaged_curves_are_measured_again(tmp_path):
    jobs = [(tiny.recipe(), tmp_path / "run")]
    trainings = prepare(jobs, tiny.load, CPU)
    train(trainings)
    measure_between(trainings)
    (tmp_path / "run/curves.json").write_text("{}")
    assert unfinished(jobs, curves=True) == jobs
    assert unfinished(jobs) == []


def test_a_finished_run_of_another_recipe_is_not_taken_for_the_job(tmp_path):
    train(prepare([(tiny.recipe(), tmp_path / "run")], tiny.load, CPU))
    with pytest.raises(MismatchError, match=r"lr: 0\.05, 0\.5"):
        unfinished([(tiny.recipe(lr=0.5), tmp_path / "run")])


def test_stop_is_called_after_each_advance_and_a_pack_stops_in_the_middle_of_a_round(tmp_path, monkeypatch):
    monkeypatch.setattr(training_module, "_BURST_STEPS", 1)
    jobs = [(tiny.recipe(seed=seed), tmp_path / str(seed)) for seed in range(3)]
    moved = []
    train(prepare(jobs, tiny.load, CPU), watch=moved.append, stop=lambda: len(moved) == 2)
    assert [Run(path).state().completed for _, path in jobs] == [1, 1, 0]
