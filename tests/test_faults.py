"""A commit that fails, or is killed, at each of its file operations leaves every earlier snapshot readable."""

import builtins
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from snapens import Snapshots
from snapens.errors import StoreError
from snapens.storage import durable

STEPS = (4, 8, 12)


def state(step):
    return {"frozen": torch.ones(50), "weight": torch.full((1000,), float(step))}


class Interrupted:
    """Counts the file operations of a commit and does something at one of them, before or after it is carried out."""

    def __init__(self, patch, at, action, after=False):
        self.count, self.at, self.action, self.after = 0, at, action, after
        for owner, name in ((os, "open"), (os, "fsync"), (os, "replace"), (Path, "unlink"), (os, "scandir")):
            patch(owner, name, self.counted(getattr(owner, name)))
        opened = self.counted(builtins.open)
        patch(durable, "open", lambda *args, **options: self.watched(opened(*args, **options)))

    def counted(self, function):
        def operation(*args, **kwargs):
            self.count += 1
            hit = self.count == self.at  # an operation may consist of others
            if hit and not self.after:
                self.action()
            result = function(*args, **kwargs)
            if hit and self.after:
                self.action()
            return result

        return operation

    def watched(self, file):
        def write(data):  # a write that stops half-way
            written = file.write(bytes(data)[: len(data) // 2])
            file.flush()
            halfway()
            return written + file.write(bytes(data)[len(data) // 2 :])

        halfway = self.counted(lambda: None)
        return Watched(file, write)


class Watched:
    """A file whose writes are cut in the middle."""

    def __init__(self, file, write):
        self.file, self.write = file, write

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def begun(path):
    """A run of three snapshots, gone back to the second: the next commit replaces, shares and removes."""
    store = Snapshots(path)
    store.open_to_write()
    for step in STEPS:
        store.commit(step, state(step))
    store.rewind(8)
    return store


def assert_sound(path):
    reader = Snapshots(path)
    assert reader.steps in ((4, 8, 12), (4, 8, 11))
    for step in reader.steps:
        assert all(torch.equal(reader.load(step)[name], value) for name, value in state(step).items())


def operations(path):
    with pytest.MonkeyPatch.context() as patch:
        store = begun(path)
        interrupted = Interrupted(lambda *args: patch.setattr(*args, raising=False), at=-1, action=None)
        store.commit(11, state(11))
    store.close()
    return interrupted.count


def test_a_failure_at_each_file_operation_loses_nothing_and_can_be_repeated(tmp_path):
    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    count = operations(tmp_path / "count")
    assert count > 15
    rejected = 0
    for at in range(1, count + 1):
        path = tmp_path / str(at)
        store = begun(path)
        with pytest.MonkeyPatch.context() as patch:
            Interrupted(lambda *args: patch.setattr(*args, raising=False), at, fail)
            try:
                store.commit(11, state(11))
            except StoreError as error:
                rejected += "No space left on device" in str(error)
        assert_sound(path)
        if store.steps != (4, 8, 11):
            store.commit(11, state(11))
        assert Snapshots(path).steps == (4, 8, 11)
        assert_sound(path)
        store.close()
    assert rejected > 10


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from pathlib import Path
import test_faults as t
count = t.operations(Path(sys.argv[2]) / "count")
for after in (False, True):
    for at in range(1, count + 1):
        path = Path(sys.argv[2]) / f"{at}-{after}"
        if (child := os.fork()) == 0:
            store = t.begun(path)
            t.Interrupted(setattr, at, lambda: os.kill(os.getpid(), signal.SIGKILL), after)
            store.commit(11, t.state(11))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (at, status)
        t.assert_sound(path)
        again = t.Snapshots(path)
        again.open_to_write(resume=True)
        again.rewind(8)
        again.commit(11, t.state(11))
        assert t.Snapshots(path).steps == (4, 8, 11)
        t.assert_sound(path)
        assert len(list((path / "snapshots").iterdir())) == 3
print(2 * count, "kills survived")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_kill_at_each_file_operation_loses_nothing_and_the_run_goes_on(tmp_path):
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("kills survived\n"), done.stderr
