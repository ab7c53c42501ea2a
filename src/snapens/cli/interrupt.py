"""Ctrl-C and SIGTERM during a long command."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


class Interrupt:
    """Acknowledges the first signal at once; a second one quits at once, and files written before stay as they are.

    The first signal raises KeyboardInterrupt, with the signal's number, except inside `finish_step`: there, calling
    the object returns true from then on, and KeyboardInterrupt is raised at the end. If it is `quiet`, nothing is
    printed.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.number = 0
        """The number of the first signal; 0 before it."""
        self._finishes_step = False

    def __call__(self) -> bool:
        """Whether a signal has arrived."""
        return self.number != 0

    def __enter__(self) -> "Interrupt":
        # Python calls a signal handler only after the current operation, and a backward pass is one operation that may
        # take minutes; a byte is sent to the wakeup socket at once, and another thread receives it.
        reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._handlers = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno())
        self._thread = Thread(target=self._acknowledge, args=(reader,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._writer.close()
        self._thread.join()

    @contextmanager
    def finish_step(self) -> Iterator[None]:
        """A context in which a signal only sets `number`: the caller stops after the step and saves its state."""
        self._finishes_step = True
        try:
            yield
        finally:
            self._finishes_step = False
        if self.number:
            raise KeyboardInterrupt(self.number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        if not self._finishes_step:
            raise KeyboardInterrupt(number)

    def _acknowledge(self, reader: socket.socket) -> None:
        with reader:
            numbers = (byte for byte in iter(lambda: reader.recv(1), b"") if byte[0] in _SIGNALS)
            if next(numbers, None):
                when = " after this step" if self._finishes_step else ""
                self._write(f"\nsnapens: stopping{when}; press Ctrl-C again to quit at once\n")
            if second := next(numbers, None):
                self._write((_SHOW_CURSOR if sys.stderr.isatty() else "") + "snapens: quit\n")
                os._exit(128 + second[0])

    def _write(self, text: str) -> None:
        if not self._quiet:
            os.write(2, text.encode())  # not sys.stderr: the interrupted thread may be inside of it
