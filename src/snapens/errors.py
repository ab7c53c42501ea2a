"""The errors of snapens: each message names the argument, the rule, the value and the remedy."""


class SnapensError(Exception):
    """Anything that snapens refuses or cannot do."""


class ArgumentError(SnapensError, ValueError):
    """An argument breaks a rule."""


class StoreError(SnapensError):
    """A folder of snapshots cannot be read or written; what it held before is intact."""


class LockedError(StoreError):
    """Another writer has the folder."""


class DamagedError(StoreError):
    """A file is not what was committed: truncated, altered, missing or unreadable."""


class MismatchError(SnapensError):
    """A snapshot does not fit the model, or a checkpoint does not fit the run."""


class NonFiniteError(SnapensError):
    """The weights hold a NaN or an infinity, so they were not committed."""


class FinishedError(SnapensError):
    """The schedule has no step left."""


class MissingPackageError(SnapensError):
    """A package is needed that is not installed; the message names the extra that brings it."""


class DataError(SnapensError):
    """The files of a data set cannot be read as what they should be."""


class MissingDataError(DataError):
    """The files of a data set are not there; `source` is the public file that would help, if there is one."""

    def __init__(self, message: str, source: str | None = None) -> None:
        super().__init__(message)
        self.source = source
