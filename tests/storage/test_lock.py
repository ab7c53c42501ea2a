"""One writer per folder."""

import errno
import os
import subprocess
import sys

import pytest
from states import state

from snapens import Snapshots
from snapens.errors import DamagedError, LockedError, StoreError
from snapens.storage import manifest, tensorfile
from snapens.storage.lock import WriterLock, fcntl


def test_a_second_writer_in_the_process_is_rejected_until_the_first_closes(folder):
    with pytest.raises(LockedError, match=r"one writer.*this process: close .* ensembler\.close\(\)"):
        Snapshots(folder.path).open_to_write(resume=True)
    folder.close()
    Snapshots(folder.path).open_to_write()


def test_a_rejection_leaves_no_lock_behind(folder):
    folder.commit(4, state(1))
    folder.close()
    with pytest.raises(StoreError) as kept_alive:
        Snapshots(folder.path).open_to_write()
    Snapshots(folder.path).open_to_write(resume=True)
    assert kept_alive.tb is not None


OTHER = "import sys; from snapens import Snapshots; Snapshots(sys.argv[1]).open_to_write(resume=True)"


def test_a_second_writer_in_another_process_is_rejected_and_the_first_named(folder):
    done = subprocess.run([sys.executable, "-c", OTHER, str(folder.path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        f"LockedError: store must have one writer, but {folder.path} is being written by process {os.getpid()}"
        in done.stderr
    )
    remedy = "under DDP pass the wrapped model, or process_group=torch.distributed.group.WORLD\n"
    assert done.stderr.endswith("wait until it ends or choose another folder; " + remedy)


def test_a_forked_worker_does_not_keep_the_lock_alive(tmp_path):
    code = """
import os, sys
from snapens import Snapshots
store = Snapshots(sys.argv[1])
store.open_to_write()
if os.fork() == 0:
    sys.stdin.read()  # outlives the writer, until the test closes this pipe
os._exit(0)
"""
    worker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE)
    assert worker.wait() == 0
    Snapshots(tmp_path).open_to_write()
    worker.stdin.close()


def test_a_lock_lost_to_another_descriptor_is_taken_again_before_a_commit(folder):
    open(folder.path / "writer.lock").close()  # what shutil.copytree does, and POSIX drops the lock
    folder.commit(4, state(1))
    done = subprocess.run([sys.executable, "-c", OTHER, str(folder.path)], capture_output=True, text=True, check=False)
    assert "LockedError" in done.stderr


def test_a_forked_worker_cannot_commit(tmp_path):
    code = """
import os, sys, torch
from snapens import Snapshots
from snapens.errors import LockedError
store = Snapshots(sys.argv[1])
store.open_to_write()
if (child := os.fork()) == 0:
    try:
        store.commit(4, {"w": torch.ones(1)})
    except LockedError:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
store.commit(4, {"w": torch.ones(1)})
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_lock_that_the_system_cannot_give_is_no_second_writer(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with pytest.raises(StoreError, match=r"store .* could not be written \(.*No locks available") as caught:
        Snapshots(tmp_path).open_to_write()
    assert not isinstance(caught.value, LockedError)


def test_a_manifest_that_another_process_replaced_is_not_overwritten(folder):
    folder.commit(4, state(1))
    other = manifest.Manifest(manifest.read(folder.path).value.snapshots[:0]).encode(folder.identity["run"])
    (folder.path / "manifest.json").write_bytes(other)  # what a second writer does after shutil.copytree dropped a lock
    with pytest.raises(StoreError, match=r"one writer, but another process changed .*manifest\.json: stop the other"):
        folder.commit(8, state(2))
    assert (folder.path / "manifest.json").read_bytes() == other


def test_a_manifest_that_another_process_replaces_during_a_commit_is_not_overwritten(folder, monkeypatch):
    folder.commit(4, state(1))
    other, stream = manifest.Manifest().encode(folder.identity["run"]), tensorfile.stream

    def slow(*args):
        digest = stream(*args)
        (folder.path / "manifest.json").write_bytes(other)
        return digest

    monkeypatch.setattr(tensorfile, "stream", slow)
    with pytest.raises(StoreError, match=r"one writer, but another process changed .*manifest\.json: stop the other"):
        folder.commit(8, state(2))
    assert (folder.path / "manifest.json").read_bytes() == other


def test_a_second_writer_is_rejected_while_the_first_is_still_opening(tmp_path, monkeypatch):
    path, lockf = tmp_path / "writer.lock", fcntl.lockf

    def second(*args):  # as another thread of the process would
        with pytest.raises(LockedError, match="this process"):
            WriterLock(path)
        lockf(*args)

    monkeypatch.setattr(fcntl, "lockf", second)
    lock = WriterLock(path)
    monkeypatch.undo()
    lock.release()
    WriterLock(path).release()


def test_a_lock_file_that_was_removed_is_made_and_locked_again_before_a_commit(folder):
    (folder.path / "writer.lock").unlink()
    folder.commit(4, state(1))
    done = subprocess.run([sys.executable, "-c", OTHER, str(folder.path)], capture_output=True, text=True, check=False)
    assert "LockedError" in done.stderr


def test_a_commit_is_rejected_if_another_process_locked_the_file_that_replaced_the_lock(folder):
    (folder.path / "writer.lock").unlink()
    code = f"{OTHER}; print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    code = code.replace("Snapshots(sys.argv[1]).open", "store = Snapshots(sys.argv[1]); store.open")
    with subprocess.Popen([sys.executable, "-c", code, str(folder.path)], **pipes) as other:
        other.stdout.readline()
        with pytest.raises(LockedError, match=f"is being written by process {other.pid}"):
            folder.commit(4, state(1))
        other.stdin.close()
    folder.commit(4, state(1))


def test_a_lock_that_is_a_link_to_itself_is_rejected(tmp_path):
    (tmp_path / "writer.lock").symlink_to("writer.lock")
    with pytest.raises(DamagedError, match=r"writer\.lock must be a regular file, got a symbolic link: remove"):
        Snapshots(tmp_path).open_to_write()


def test_a_lock_that_is_a_hard_link_to_another_file_is_rejected_and_not_overwritten(tmp_path):
    (tmp_path / "outside").write_bytes(b"mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/writer.lock").hardlink_to(tmp_path / "outside")
    with pytest.raises(DamagedError, match=r"writer\.lock must hold the number of a process, got another content"):
        Snapshots(tmp_path / "run").open_to_write()
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_a_lock_is_released_even_if_the_system_reports_an_error_when_it_is_closed(folder, monkeypatch):
    close = os.close

    def failing(descriptor):
        close(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "close", failing)
    folder.close()
    monkeypatch.undo()
    folder.open_to_write()


def test_a_fifo_in_place_of_the_lock_is_rejected_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "writer.lock")
    with pytest.raises(DamagedError, match=r"writer\.lock must be a regular file"):
        Snapshots(tmp_path).open_to_write()
