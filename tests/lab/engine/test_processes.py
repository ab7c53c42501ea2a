"""Calls in other processes: their results and errors come back, and none outlives the caller."""

import atexit
import os
import signal
import subprocess
import sys
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

import snapens
from snapens.errors import ArgumentError, SnapensError
from snapens.lab.engine.processes import apart

STOPPED = """
import os, signal, sys
from snapens.lab.engine.processes import apart

def wait(parent):
    try:
        os.kill(parent, {signal})
        os.read(os.pipe()[0], 1)  # for ever
    finally:
        os.write(1, b"cleaned up\\n")

if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # a job in the background inherits that SIGINT is ignored
        signal.signal(number, signal.default_int_handler)
    try:
        apart(1, wait, os.getpid())
    except KeyboardInterrupt:
        os.write(1, b"interrupted\\n")
"""


def reject(value):
    raise ArgumentError(f"value must be something else, got {value}")


def vanish():
    os._exit(7)


def end_terminated():
    """Be terminated while the interpreter exits."""
    atexit.register(os.kill, os.getpid(), signal.SIGTERM)
    return "a result"


def test_every_process_returns_its_result():
    first, second = apart(2, os.getpid)
    assert len({first, second, os.getpid()}) == 3


def test_an_interrupt_while_processes_are_started_is_not_lost(monkeypatch):
    start = SpawnProcess.start

    def interrupted(process):
        start(process)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            apart(1, os.getpid)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_in_a_process_is_raised_here_with_its_traceback():
    with pytest.raises(ArgumentError, match="value must be something else, got 3") as raised:
        apart(1, reject, 3)
    assert "in reject" in raised.value.__notes__[0]


def test_a_process_that_dies_is_an_error_of_ours():
    with pytest.raises(SnapensError, match="a benchmark process ended without a result, exit status 7"):
        apart(1, vanish)


def test_a_process_that_is_terminated_while_it_exits_ends_silently(capfd):
    assert apart(1, end_terminated) == ["a result"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_processes_and_leaks_nothing(number, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(STOPPED.replace("{signal}", str(int(number))))
    environment = {**os.environ, "PYTHONPATH": str(Path(snapens.__file__).parents[1])}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split("\n") == ["cleaned up", "interrupted", ""]
    assert done.stderr == ""  # neither a traceback nor a resource_tracker that found semaphores
    assert done.returncode == 0
