"""Packages that only some need, imported where they are used."""

from importlib import import_module
from typing import Any

from .errors import MissingPackageError


def package(module: str, extra: str) -> Any:
    """A module of a package that one of our extras installs."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise MissingPackageError(f'{name} must be installed for this: pip install "snapens[{extra}]"') from error
