"""Messages on the standard error stream, and paragraphs of a result."""

import sys
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ..errors import shortened

NO_BREAK = "\N{NO-BREAK SPACE}"


def say(message: str) -> None:
    """Print a message."""
    sys.stderr.write(f"{message}\n")


def paragraphs(text: str) -> None:
    """Print paragraphs of a result, without a break between a number and its %, or at `NO_BREAK`.

    rich would also break at a no-break space.
    """
    width = Console().width
    for line in text.replace(" %", f"{NO_BREAK}%").splitlines():
        wrapped = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        sys.stdout.write(wrapped.replace(NO_BREAK, " ") + "\n")


def show(table: Table, *, wrapped: bool = False) -> None:
    """Print a table of plain texts. Its names and numbers, which users copy, are never cut off.

    It may be wider than the terminal. With `wrapped`, texts of several words have several lines instead.
    """
    console = Console(markup=False, highlight=False, emoji=False)
    needed = Console(width=100_000, markup=False, emoji=False).measure(table)
    console.width = max(console.width, needed.minimum if wrapped else needed.maximum)
    with console.capture() as text:  # rich would exit with status 1 if the pipe is closed
        console.print(table)
    sys.stdout.write(text.get())


def counted(items: Sequence[object], noun: str) -> str:
    """The number of items with its noun, such as "2 runs"."""
    return f"{len(items)} {noun}{'s' * (len(items) != 1)}"


class Failures:
    """Prints why runs failed: each reason once, at the end with the number of the other runs that it applies to."""

    def __init__(self) -> None:
        self._runs: dict[str, list[str]] = {}

    def __enter__(self) -> "Failures":
        return self

    def add(self, reason: str, run: str, *others: str) -> None:
        """Some runs have failed for a reason."""
        if reason in self._runs:
            self._runs[reason] += [run, *others]
        else:
            say(f"snapens: {shortened([run, *others], limit=3)} failed: {reason}")
            self._runs[reason] = [run]

    def __exit__(self, *exception: object) -> None:
        for first, *others in self._runs.values():
            if others:
                runs = f"{counted(others, 'more run')} failed with the same error as {first}"
                say(f"snapens: {runs}: {shortened(others, limit=3)}")
