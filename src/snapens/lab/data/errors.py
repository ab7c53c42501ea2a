"""What can be wrong with the files of a data set."""

from importlib import import_module
from typing import Any

from ...errors import SnapensError


class DataError(SnapensError):
    """The files of a data set cannot be read as what they should be."""


class MissingDataError(DataError):
    """The files of a data set are not there."""


def package(module: str) -> Any:
    """A module of the extra `data`, imported when it is first needed."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise DataError(f'{name} must be installed to read these files: pip install "snapens[data]"') from error
