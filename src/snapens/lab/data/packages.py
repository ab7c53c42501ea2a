"""Optional packages, imported when a file needs them."""

from importlib import import_module
from typing import Any

from ...errors import DataError


def package(module: str) -> Any:
    """A module of the extra `data`."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise DataError(f'{name} must be installed to read these files: pip install "snapens[data]"') from error
