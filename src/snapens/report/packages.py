"""Optional packages, imported when something is drawn or written."""

from importlib import import_module
from typing import Any

from ..errors import SnapensError


def package(module: str) -> Any:
    """A module of the extra `report`."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise SnapensError(f'{name} must be installed to make a report: pip install "snapens[report]"') from error
