"""Optional packages: they are imported where they are used, and the error names a command that installs them."""

import shlex
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from .errors import MissingPackageError

_CLONE = Path(__file__).parents[2]


def package(module: str, extra: str) -> Any:
    """Import a module of an optional package, which belongs to an extra of snapens."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise MissingPackageError(f"{name} must be installed for this: {install_command(extra)}") from error


def install_command(extra: str) -> str:
    """The command that installs an extra: from the clone that this package runs from, else its packages by name."""
    if (_CLONE / "pyproject.toml").is_file():
        return f'pip install -e "{_CLONE}[{extra}]"'
    # snapens itself is not on PyPI yet
    requirements = (line.partition(";") for line in metadata.requires("snapens") or [])
    names = [name.strip() for name, _, marker in requirements if f"extra == '{extra}'" in marker.replace('"', "'")]
    return f"pip install {shlex.join(names)}"  # a shell would take the > of a version for a redirection
