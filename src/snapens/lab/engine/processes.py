"""Function calls in separate processes."""

import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from ...errors import SnapensError


def apart(processes: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call a function in several new processes at once, so that earlier measurements leave nothing on the device.

    The processes communicate through pipes, which need no semaphores. On an error or Ctrl-C all of them are ended.
    """
    context = get_context("spawn")
    children: list[tuple[SpawnProcess, Connection]] = []
    try:
        resource_tracker.ensure_running()  # starting it later would unblock the signal
        with _blocked(signal.SIGINT):  # children inherit this: on Ctrl-C this process ends them
            for _ in range(processes):
                ours, theirs = context.Pipe()
                child = context.Process(target=_call, args=(theirs, function, arguments))
                child.start()
                theirs.close()
                children.append((child, ours))
        return [_result(child, ours) for child, ours in children]
    except BaseException:
        for child, _ in children:
            child.terminate()
        raise
    finally:
        for child, _ in children:
            child.join()


def _call(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """In a child: send the result of the function, or its error."""
    # SystemExit ends a loader's workers and removes temporary folders; the default handler does neither
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        connection.send(function(*arguments))
    except Exception as error:
        error.add_note(traceback.format_exc())
        connection.send(error)
    finally:  # SystemExit would be reported if it were raised while the interpreter exits
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _result(child: SpawnProcess, connection: Connection) -> Any:
    try:
        found = connection.recv()
    except EOFError:
        child.join()
        raise SnapensError(f"a benchmark process ended without a result, exit status {child.exitcode}") from None
    if isinstance(found, Exception):
        raise found
    return found


@contextmanager
def _blocked(number: int) -> Iterator[None]:
    """Deliver a signal to this process only afterwards; processes that are started meanwhile never receive it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
