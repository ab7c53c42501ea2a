"""Damaged folders, and disks that are full or fail."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from states import equal, files, state

from snapens import Snapshots
from snapens.errors import DamagedError, StoreError
from snapens.storage import durable, manifest, tensorfile
from snapens.storage.tensorfile import About, Spec


def damaged(folder: Snapshots, change) -> pytest.ExceptionInfo:
    for step in (4, 8):
        folder.commit(step, state(step))
    path = next((folder.path / "snapshots").glob("step-000000008-*"))
    change(path)
    reader = Snapshots(folder.path)
    assert equal(reader.load(4), state(4))
    with pytest.raises(DamagedError) as caught:
        reader.load(8)
    assert str(path) in str(caught.value)
    return caught


def test_a_truncated_snapshot_is_rejected_and_the_others_are_read(folder):
    caught = damaged(folder, lambda path: path.write_bytes(path.read_bytes()[:-1]))
    assert "truncated or altered" in str(caught.value)


def test_a_snapshot_with_one_bit_changed_is_rejected(folder):
    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

    assert "it was altered" in str(damaged(folder, flip).value)


def test_a_snapshot_of_another_size_is_rejected_without_reading_it(folder, monkeypatch):
    folder.commit(4, state(1))
    (path,) = (folder.path / "snapshots").iterdir()
    os.truncate(path, 8 << 30)  # a hole: it takes no space, but reading it would take minutes
    monkeypatch.setattr(durable.hashlib, "file_digest", None)
    with pytest.raises(DamagedError, match="but it was truncated or altered"):
        Snapshots(folder.path).load(4)


def test_a_snapshot_that_is_gone_is_named(folder):
    assert "is listed in the manifest, but it is missing: restore the file" in str(damaged(folder, Path.unlink).value)


def test_a_snapshot_that_the_disk_cannot_read_is_not_said_to_be_damaged(folder, monkeypatch):
    folder.commit(4, state(4))
    reader = Snapshots(folder.path)
    assert reader.steps == (4,)
    opened = os.open

    def broken(path, *args):
        if str(path).endswith(".safetensors"):
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *args)

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(StoreError, match=r"could not be read \(.*Input/output error") as caught:
        reader.load(4)
    assert not isinstance(caught.value, DamagedError)


@pytest.mark.parametrize("place", [("step-000000004-0123456789ab.safetensors", "frozen"), (None, "other")])
def test_a_tensor_that_no_snapshot_holds_is_rejected(folder, place):
    for step in (4, 8):
        folder.commit(step, {"frozen": torch.ones(2), "w": torch.full((1,), step)})
    run, earlier, later = folder.identity["run"], *folder.identity["snapshots"].values()
    specs, about = {"frozen": Spec(torch.float32, (2,))}, About(run, "snapshot", 8)
    file, key = place[0] or earlier, place[1]
    items = [("frozen", (file, key))]
    digest = tensorfile.stream(folder.path / "snapshots" / later, specs, items, about, items)
    records = manifest.read(folder.path).value.snapshots
    altered = manifest.Manifest((records[0], replace(records[1], digest=digest)))
    (folder.path / "manifest.json").write_bytes(altered.encode(run))
    with pytest.raises(DamagedError, match=f"step 8 needs '{key}' of {file}, which is missing: restore the folder"):
        Snapshots(folder.path).load(8)


def test_a_snapshot_of_another_run_is_rejected_even_if_the_manifest_names_it(tmp_path, folder):
    other = Snapshots(tmp_path / "other")
    other.open_to_write()
    for store in (folder, other):
        store.commit(4, state(1))
    foreign = manifest.read(other.path).value.snapshots
    (name,) = files(other)
    (folder.path / "snapshots" / name).write_bytes((other.path / "snapshots" / name).read_bytes())
    (folder.path / "manifest.json").write_bytes(manifest.Manifest(foreign).encode(folder.identity["run"]))
    with pytest.raises(DamagedError, match=rf"{name} must be of About\(run='{folder.identity['run']}'"):
        Snapshots(folder.path).load(4)


def test_a_damaged_snapshot_stops_a_resumed_run_at_its_start(folder):
    folder.commit(4, state(4))
    folder.close()
    next((folder.path / "snapshots").iterdir()).write_bytes(b"")
    again = Snapshots(folder.path)
    again.open_to_write(resume=True)
    with pytest.raises(DamagedError):
        again.rewind(4)


def test_a_write_beyond_the_limit_loses_nothing_and_can_be_repeated(tmp_path):
    code = """
import resource, signal, sys, torch
from snapens import Snapshots
from snapens.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Snapshots(sys.argv[1]); store.open_to_write()
store.commit(4, {"w": torch.ones(1000)})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    store.commit(8, {"w": torch.zeros(100_000)})
except StoreError as error:
    print(error)
print(len(list((store.path / "snapshots").iterdir())), Snapshots(sys.argv[1]).load(4)["w"].sum().item())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.commit(8, {"w": torch.zeros(100_000)})
print(Snapshots(sys.argv[1]).steps)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    message, left, after = done.stdout.strip().splitlines()
    assert f"the snapshot of step 8 in {tmp_path} could not be written" in message
    assert "File too large" in message
    assert "earlier files are intact: free disk space" in message
    assert left == "1 1000.0"
    assert after == "(4, 8)"


def test_what_a_failed_commit_left_is_removed_before_the_next_is_written(folder, monkeypatch):
    folder.commit(4, state(4))
    names = ("step-000000008-0123456789ab.safetensors", "step-000000008-0123456789ab.safetensors.part")
    left = [folder.path / "snapshots" / name for name in (*names, names[0] + ".ba9876543210.part")]
    left += [folder.path / f"{name}.ba9876543210.part" for name in ("manifest.json", "manifest.previous.json")]
    own = [folder.path / "snapshots/step-000000008.safetensors", folder.path / "report.html.ba9876543210.part"]
    for path in (*left, *own):
        path.touch()
    seen, publish = [], durable.publish
    monkeypatch.setattr(durable, "publish", lambda *args: seen.append([p.exists() for p in left]) or publish(*args))
    folder.commit(8, state(8))
    assert seen == [[False] * 5] * 3
    assert all(path.exists() for path in own)  # names that a commit does not use


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [
        (["manifest.json"], "copy manifest.previous.json to manifest.json"),
        (["manifest.json", "manifest.previous.json"], "restore it"),
    ],
)
@pytest.mark.parametrize("resume", [False, True])
def test_a_lost_manifest_is_not_begun_anew(folder, lost, remedy, resume):
    folder.commit(4, state(4))
    folder.close()
    for name in lost:
        (folder.path / name).unlink()
    with pytest.raises(DamagedError) as caught:
        Snapshots(folder.path).open_to_write(resume)
    assert f"contains snapshots, but manifest.json is missing: {remedy}, or" in str(caught.value)
    assert not (folder.path / "manifest.json").exists()
    assert len(list((folder.path / "snapshots").iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"store .*run could not be written \(.*File exists.*choose another path"):
        Snapshots(tmp_path / "file" / "run").open_to_write()


def test_a_file_that_cannot_be_removed_does_not_undo_a_commit(folder, monkeypatch, caplog):
    for step in (4, 8):
        folder.commit(step, state(step))
    folder.rewind(4)

    def reject(path, **_):
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(Path, "unlink", reject)
    folder.commit(8, state(80))
    assert "could not be removed" in caplog.text
    assert equal(Snapshots(folder.path).load(8), state(80))


def test_weights_that_change_during_a_commit_give_a_snapshot_that_can_be_read(folder, monkeypatch):
    weight, fsync = torch.zeros(1000), os.fsync

    def changing(descriptor):
        weight.add_(1)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", changing)
    folder.commit(4, {"w": weight})
    assert Snapshots(folder.path).load(4)["w"].unique().tolist() == [0]


def test_a_commit_succeeds_while_the_interpreter_shuts_down(tmp_path):
    code = f"""
import atexit, torch
from snapens import Snapshots
store = Snapshots({str(tmp_path)!r})
store.open_to_write()
atexit.register(lambda: store.commit(1, {{"w": torch.ones(3)}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert Snapshots(tmp_path).steps == (1,)
