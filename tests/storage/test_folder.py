"""Snapshots in a folder: what is written, and what a reader rejects."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from states import equal, files, state

from snapens import Snapshots
from snapens.errors import DamagedError, StoreError
from snapens.outputs import Outputs
from snapens.storage import durable
from snapens.weights import tensors


def test_a_name_is_reserved_before_its_snapshot_is_committed(folder):
    name = folder.reserve(4)
    assert folder.reserve(4) == name
    folder.commit(4, state(1))
    assert folder.identity["snapshots"] == {4: name}
    assert folder.reserve(8) != folder.reserve(12)


@pytest.mark.parametrize(("failing", "same"), [("step-", True), ("manifest.json", False)])
def test_a_name_stays_reserved_until_a_manifest_may_have_it(folder, monkeypatch, failing, same):
    name, publish = folder.reserve(4), durable.publish

    def full(path, content):
        written = publish(path, content)
        if path.name.startswith(failing):
            raise OSError(errno.ENOSPC, "No space left on device")
        return written

    monkeypatch.setattr(durable, "publish", full)
    with pytest.raises(StoreError, match="No space left"):
        folder.commit(4, state(1))
    monkeypatch.undo()
    folder.commit(4, state(2))
    assert (folder.identity["snapshots"] == {4: name}) == same
    assert equal(Snapshots(folder.path).load(4), state(2))
    assert len(files(folder)) == 1


def test_the_manifest_grows_by_the_snapshot_and_not_by_its_tensors(folder):
    frozen = {f"layer{k}": torch.full((2,), float(k)) for k in range(100)}
    for step in (1, 2):
        folder.commit(step, {**frozen, "w": torch.full((1,), float(step))})
    before = (folder.path / "manifest.json").stat().st_size
    folder.commit(3, {**frozen, "w": torch.full((1,), 3.0)})
    assert (folder.path / "manifest.json").stat().st_size - before < 250
    assert equal(Snapshots(folder.path).load(3), {**frozen, "w": torch.full((1,), 3.0)})


def test_a_tensor_under_a_name_that_only_an_earlier_snapshot_had_is_not_stored_again(folder):
    long, weight = "a" * 500, torch.ones(1000)
    folder.commit(1, {long: weight, "b": weight})
    folder.commit(2, {"b": weight, "tied": weight})
    assert equal(Snapshots(folder.path).load(2), {"b": weight, "tied": weight})
    assert min(files(folder).values()) < 4000


def test_a_snapshot_file_is_plain_safetensors(folder, net):
    folder.commit(4, tensors(net))
    (path,) = (folder.path / "snapshots").iterdir()
    read = safetensors.torch.load_file(path)
    assert torch.equal(read["head.weight"], net.head.weight)
    manifest = json.loads((folder.path / "manifest.json").read_text())
    (record,) = manifest["snapshots"]
    assert (record["file"], record["digest"]["bytes"]) == (path.name, path.stat().st_size)


def test_reading_creates_nothing_and_needs_no_lock(folder):
    folder.commit(4, state(1))
    before = sorted(str(path) for path in folder.path.rglob("*"))
    folder.path.chmod(0o555)
    code = (
        "import sys; from snapens import Snapshots as S; s = S(sys.argv[1]); print(s.steps, s.load(4)['count'].item())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder.path)], capture_output=True, text=True, check=True)
    folder.path.chmod(0o755)
    assert done.stdout.strip() == "(4,) 1"
    assert sorted(str(path) for path in folder.path.rglob("*")) == before


def test_opening_a_missing_folder_to_read_creates_nothing(tmp_path):
    with pytest.raises(StoreError, match=r"holds manifest.json, got .*typo, which does not exist: check the path"):
        Snapshots(tmp_path / "typo").steps  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_runs_that_is_taken_for_a_run_names_some_of_them(tmp_path):
    for name in ("b", "a"):
        store = Snapshots(tmp_path / name)
        store.open_to_write()
        store.close()
    expected = rf"holds manifest.json, got {tmp_path}: choose a run in it, such as {tmp_path}/a, {tmp_path}/b$"
    with pytest.raises(StoreError, match=expected):
        Snapshots(tmp_path).steps  # noqa: B018


def test_a_reader_sees_each_commit(folder):
    reader = Snapshots(folder.path)
    assert reader.steps == ()
    folder.commit(4, state(1))
    assert reader.steps == (4,)


def test_a_reader_cannot_write(folder):
    with pytest.raises(StoreError, match="open for reading only"):
        Snapshots(folder.path).commit(4, state(1))


def test_a_folder_with_snapshots_is_rejected_unless_resumed(folder):
    folder.commit(4, state(1))
    folder.close()
    with pytest.raises(StoreError, match=r"holds those of steps 4: choose another, or pass resume=True"):
        Snapshots(folder.path).open_to_write()
    again = Snapshots(folder.path)
    again.open_to_write(resume=True)
    again.commit(8, state(2))
    assert again.steps == (4, 8)


@pytest.mark.parametrize("name", ["writer.lock", "snapshots"])
def test_a_symbolic_link_that_leads_out_of_a_run_folder_is_rejected_and_not_written_through(tmp_path, name):
    outside = tmp_path / "outside"
    if name == "snapshots":
        outside.mkdir()
        (outside / "step-000000004-0123456789ab.safetensors").write_bytes(b"mine")
    else:
        outside.write_bytes(b"mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(outside)
    with pytest.raises(StoreError, match=rf"{name} must be a (regular file|folder), got a symbolic link"):
        Snapshots(tmp_path / "run").open_to_write()
    mine = outside / "step-000000004-0123456789ab.safetensors" if name == "snapshots" else outside
    assert mine.read_bytes() == b"mine"
    (tmp_path / "run" / name).unlink()
    Snapshots(tmp_path / "run").open_to_write()


def test_a_folder_that_becomes_a_symbolic_link_between_two_commits_is_not_written_through(folder, tmp_path):
    folder.commit(4, state(1))
    (folder.path / "snapshots").rename(tmp_path / "outside")
    (folder.path / "snapshots").symlink_to(tmp_path / "outside")
    before = sorted((tmp_path / "outside").iterdir())
    with pytest.raises(StoreError, match="snapshots must be a folder, got a symbolic link: replace it by the folder"):
        folder.commit(8, state(2))
    assert sorted((tmp_path / "outside").iterdir()) == before
    (folder.path / "snapshots").unlink()
    (tmp_path / "outside").rename(folder.path / "snapshots")
    folder.commit(8, state(2))


def test_the_run_folder_itself_may_be_a_symbolic_link(tmp_path):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run").symlink_to("large disk")
    store = Snapshots(tmp_path / "run")
    store.open_to_write()
    store.commit(4, state(1))
    assert Snapshots(tmp_path / "large disk").steps == (4,)


def test_a_manifest_that_the_disk_cannot_find_is_not_replaced_by_an_empty_one(folder, monkeypatch):
    folder.close()
    found = Path.stat

    def broken(path, **options):
        if path.name == "manifest.json":
            raise OSError(errno.EIO, "Input/output error")
        return found(path, **options)

    monkeypatch.setattr(Path, "stat", broken)
    before = (folder.path / "manifest.json").read_bytes()
    with pytest.raises(StoreError, match=r"manifest\.json could not be read .*Input/output error") as caught:
        Snapshots(folder.path).open_to_write()
    assert not isinstance(caught.value, DamagedError)
    assert (folder.path / "manifest.json").read_bytes() == before


def test_a_new_run_folder_and_its_new_parents_are_synced_into_the_folder_around_them(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def noting(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    Snapshots(tmp_path / "runs/a").open_to_write()
    around = [path.stat().st_ino for path in (tmp_path, tmp_path / "runs", tmp_path / "runs/a")]
    assert synced[:3] == around


def test_a_file_is_no_folder_of_snapshots(tmp_path):
    (tmp_path / "weights.pt").touch()
    with pytest.raises(StoreError, match=r"must be a folder that holds manifest\.json"):
        Snapshots(tmp_path / "weights.pt").steps  # noqa: B018


def test_going_back_replaces_later_snapshots_and_the_next_commit_removes_their_files(folder):
    for step in (4, 8, 12):
        folder.commit(step, state(step))
    folder.rewind(5)
    assert folder.steps == (4,)
    assert Snapshots(folder.path).steps == (4, 8, 12)  # nothing is lost before there is something new
    folder.commit(8, state(80))
    assert folder.steps == Snapshots(folder.path).steps == (4, 8)
    assert equal(Snapshots(folder.path).load(8), state(80))
    assert len(files(folder)) == 2


@pytest.mark.parametrize("emptied", [False, True])
def test_a_run_folder_that_was_moved_is_reported_and_not_created_again(folder, emptied):
    folder.commit(4, state(1))
    moved = folder.path.rename(folder.path.with_name("moved"))
    if emptied:
        folder.path.mkdir()
    with pytest.raises(StoreError, match=r"manifest\.json is missing: move the folder back and try again"):
        folder.commit(8, state(2))
    outputs = Outputs(folder.members, np.zeros((1, 1, 1), np.float16), np.zeros(1, np.int64))
    with pytest.raises(StoreError, match=r"store must be a folder that holds manifest\.json, got "):
        outputs.save(folder.path, "test")
    assert folder.path.exists() == emptied
    if emptied:
        folder.path.rmdir()  # nothing was written into it
    moved.rename(folder.path)
    folder.commit(8, state(2))
    assert equal(Snapshots(folder.path).load(8), state(2))
