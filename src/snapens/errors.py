"""The errors of snapens. Each message names the argument, the rule, the value and the remedy."""

from collections.abc import Sequence
from contextlib import suppress
from operator import index
from typing import Any


class SnapensError(Exception):
    """Base class of all errors that snapens raises."""


class ArgumentError(SnapensError, ValueError):
    """An argument breaks a rule."""


class StoreError(SnapensError):
    """A folder of snapshots cannot be read or written; its earlier content is intact."""


class LockedError(StoreError):
    """Another writer is using the folder."""


class DamagedError(StoreError):
    """A file differs from what was committed: it is truncated, altered, missing or unreadable."""


class MismatchError(SnapensError):
    """A snapshot does not fit the model, or a checkpoint does not fit the run."""


class BarrierError(SnapensError):
    """The error on the line between snapshots is too high to average their weights."""


class NonFiniteError(SnapensError):
    """The weights contain a NaN or an infinity and were not committed."""


class FinishedError(SnapensError):
    """All steps of the schedule are completed."""


class MissingPackageError(SnapensError):
    """A required package is not installed; the message says how to install it."""


class ProcessError(SnapensError):
    """A process of a run that several processes train failed or ended, so that the others cannot continue."""


class ExportError(SnapensError):
    """An ensemble cannot be exported, or the exported graph predicts something else."""


class DataError(SnapensError):
    """The files of a data set do not have the required content."""


class MissingDataError(DataError):
    """The files of a data set are missing; `source` is the name of the public file to download, if there is one."""

    def __init__(self, message: str, source: str | None = None) -> None:
        super().__init__(message)
        self.source = source


def whole_number(argument: str, value: Any, least: int) -> int:
    """An argument as an int; a float or a bool is rejected, and an integer of NumPy is accepted."""
    with suppress(TypeError):
        if not isinstance(value, bool) and (number := index(value)) >= least:
            return number
    remedy = ": use int(), or // for a division" if isinstance(value, float) else ""
    raise ArgumentError(f"{argument} must be a whole number of at least {least}, got {value!r}{remedy}")


def shortened(items: Sequence[str], limit: int = 10, separator: str = ", ") -> str:
    """The first items, and the number of the others, for a message.

    Examples:
        >>> shortened(["a", "b", "c", "d"], limit=2)
        'a, b, and 2 more'
    """
    more = [f"and {len(items) - limit} more"] if len(items) > limit else []
    return separator.join([*items[:limit], *more])
