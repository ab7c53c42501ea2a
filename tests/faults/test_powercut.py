"""Power cuts: whatever unsynced part reached the disk, all that was acknowledged is there, and the run goes on."""

import shutil
from contextlib import closing
from unittest.mock import patch

import numpy as np
import pytest
from disk import Disk
from powercut import KINDS, Choice, Model
from scenarios import LABELS, contents, look, members, rows, sampled, trained, weights

from snapens import Snapshots
from snapens.lab.records.run import Run
from snapens.outputs import Outputs

ALL = pytest.param(None, marks=pytest.mark.long)
"""Images of each kind after each operation; otherwise, so many of them."""
LOOP = ((), (4,), (4, 8), (4, 8, 12), (4, 8, 11))
"""The snapshots of a loop after each of its commits; the last one goes back to step 8."""


def images(disk, folder, count):
    """Disks after a power cut: (the folder of the image, what was acknowledged before)."""
    wanted = set(sampled(((at, kind) for at in range(len(disk.operations) + 1) for kind in KINDS), count))
    print(len(wanted), "images")
    model = Model()
    for at in range(len(disk.operations) + 1):
        known = [value for place, value in disk.acknowledged if place <= at]
        for kind in KINDS:
            if (at, kind) in wanted:
                image = folder / f"{at}-{kind}"
                model.write_image(image, Choice(kind, seed=at))
                yield image, known
                shutil.rmtree(image)
        if at < len(disk.operations):
            model.replay(disk.operations[at])


def loop(folder, disk):
    """Commits of a user's own loop, in a folder that they create."""
    store = Snapshots(folder / "run")
    with closing(store):
        store.open_to_write()
        for steps in LOOP[1:]:
            store.rewind(8 if steps[-1] == 11 else steps[-1])
            store.commit(steps[-1], weights(steps[-1]))
            disk.acknowledge(steps)


@pytest.mark.parametrize("count", [60, ALL])
def test_a_loop_loses_no_acknowledged_snapshot(tmp_path, count):
    (tmp_path / "disk").mkdir()
    with Disk(tmp_path / "disk") as disk:
        loop(tmp_path / "disk", disk)
    for image, known in images(disk, tmp_path, count):
        store = Snapshots(image / "run")
        if known:
            assert store.steps in LOOP[len(known) :][:2], image
        with closing(store):
            store.open_to_write(resume=True)
            for step in store.steps:
                assert contents(store.load(step)) == contents(weights(step)), image
            store.commit(16, weights(16))


@pytest.mark.parametrize("count", [12, ALL])
def test_a_run_of_the_lab_ends_as_the_one_without_a_power_cut(tmp_path, count):
    trained(tmp_path / "whole" / "run")
    expected = look(tmp_path / "whole" / "run")
    (tmp_path / "disk").mkdir()
    with Disk(tmp_path / "disk") as disk:

        def save(run, state, real=Run.save):
            real(run, state)
            disk.acknowledge(state.completed)

        with patch.object(Run, "save", save):
            trained(tmp_path / "disk" / "run")
        disk.acknowledge("finished")
    for image, known in images(disk, tmp_path, count):
        run = Run(image / "run")
        if known:
            assert run.state().completed >= max(k for k in known if k != "finished"), image
            assert set(run.snapshots.steps) >= {step for step in (4, 8) if step in known}, image
        assert "finished" not in known or look(run.path) == expected, image
        trained(run.path)
        assert look(run.path) == expected, image


@pytest.mark.parametrize("count", [40, ALL])
def test_saved_outputs_are_the_old_or_the_new_ones(tmp_path, count):
    versions = [np.stack([rows(seed + step) for step in (4, 8)]) for seed in (0, 100)]
    (tmp_path / "disk").mkdir()
    with Disk(tmp_path / "disk") as disk:
        store = Snapshots(tmp_path / "disk" / "run")
        with closing(store):
            store.open_to_write()
            for step in (4, 8):
                store.commit(step, weights(step))
        for version in versions:
            Outputs(members(store.path, 4, 8), version, LABELS).save(store.path, "test")
            disk.acknowledge(version)
    for image, known in images(disk, tmp_path, count):
        if known:
            found = Outputs.load(image / "run").log_probabilities
            assert any(np.array_equal(found, version) for version in versions[len(known) - 1 :]), image
