"""The outputs of members in a run folder."""

import errno
import os

import numpy as np
import pytest
import torch
from begun_runs import LABELS, begun, flipped, kept, member

from snapens import Snapshots
from snapens.errors import StoreError


def test_the_outputs_of_members_are_kept_one_after_the_other(tmp_path):
    run = begun(tmp_path)
    kept(tmp_path, 10, 20, 30)
    for step in (10, 20, 30):
        before = {path: path.read_bytes() for path in (tmp_path / "outputs").glob("*.safetensors")}
        run.add_outputs(step, {"test": (member(step), LABELS), "held_out": (member(-step, 3), LABELS[:3])})
        assert all(path.read_bytes() == content for path, content in before.items())
        assert len(list((tmp_path / "outputs").glob("*.safetensors"))) == max(len(before), 2) + 2
    for part, sign in (("test", 1), ("held_out", -1)):
        outputs = run.outputs(part)
        rows = 6 if sign == 1 else 3
        assert outputs.steps == (10, 20, 30)
        assert outputs.log_probabilities.shape == (3, rows, 4)
        assert outputs.log_probabilities.dtype == np.float16
        for k, step in enumerate((10, 20, 30)):
            assert np.array_equal(outputs.log_probabilities[k], member(sign * step, rows).numpy())
        assert outputs.labels.tolist() == LABELS.tolist()[:rows]


def test_outputs_of_a_replaced_snapshot_are_dropped_once_it_is_gone(tmp_path):
    run = begun(tmp_path)
    store = Snapshots(tmp_path)
    store.open_to_write()
    for step, seed in ((10, 1), (20, 2), (30, 3)):
        run.add_outputs(step, {"test": (member(seed), LABELS)}, store.reserve(step))
        store.commit(step, {"weight": torch.full((2,), float(seed))})
    store.rewind(10)
    run.add_outputs(20, {"test": (member(4), LABELS)}, store.reserve(20))
    # a kill at this moment: the manifest still has the old snapshots, and their outputs are still there
    assert np.array_equal(run.outputs().log_probabilities, np.stack([member(k).numpy() for k in (1, 2, 3)]))
    store.commit(20, {"weight": torch.full((2,), 4.0)})
    assert np.array_equal(run.outputs().log_probabilities, np.stack([member(k).numpy() for k in (1, 4)]))
    run.add_outputs(30, {"test": (member(5), LABELS)}, store.reserve(30))
    store.commit(30, {"weight": torch.full((2,), 5.0)})
    assert len(list((tmp_path / "outputs").glob("test-step-*"))) == 3
    store.close()


def test_outputs_are_those_of_committed_snapshots_alone(tmp_path):
    run = begun(tmp_path)
    store = Snapshots(tmp_path)
    store.open_to_write()
    run.add_outputs(10, {"test": (member(10), LABELS)}, store.reserve(10))
    store.commit(10, {"weight": torch.zeros(1)})
    run.add_outputs(20, {"test": (member(20), LABELS)}, store.reserve(20))  # killed before it was committed
    store.close()
    assert run.outputs().steps == (10,)
    assert np.array_equal(run.outputs().log_probabilities, member(10).numpy()[None])


def test_members_whose_outputs_are_intact_are_found(tmp_path):
    run = begun(tmp_path)
    kept(tmp_path, 10, 20)
    run.add_outputs(10, {"test": (member(1), LABELS)})
    assert run.intact_outputs("test") == {10}
    assert run.intact_outputs("held_out") == set()
    (path,) = (tmp_path / "outputs").glob("test-step-*")
    flipped(path, -1)
    assert run.intact_outputs("test") == set()


def test_outputs_that_the_disk_cannot_read_are_not_taken_for_absent(tmp_path, monkeypatch):
    run, opened = begun(tmp_path), os.open
    kept(tmp_path, 10)
    run.add_outputs(10, {"held_out": (member(1), LABELS)})

    def broken(path, *args, **options):
        if str(path).endswith("held_out.json"):
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(StoreError, match=r"held_out\.json could not be read .*Input/output error"):
        run.has_outputs("held_out")
    assert not run.has_outputs("test")
