"""Source: which code trains, told by the names that git gives to the contents of its files."""

import hashlib
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


@cache
def digest() -> str:
    """Of the package's modules, as they were at the first call."""
    return _digest({path.relative_to(_PACKAGE).as_posix(): _blob(path) for path in _PACKAGE.rglob("*.py")})


def digest_at(commit: str) -> str | None:
    """What `digest` is at a commit; None where git does not know it, as for an installed package."""
    command = ["git", "ls-tree", "-r", commit]
    try:
        listed = subprocess.run(command, cwd=_PACKAGE, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    files = (line.split("\t") for line in listed.splitlines())  # "mode type name", path
    blobs = {path: about.split()[-1] for about, path in files if path.endswith(".py")}
    return _digest(blobs) if blobs else None


def _blob(path: Path) -> str:
    """As git calls a file; lines may end as on Windows."""
    content = path.read_bytes().replace(b"\r\n", b"\n")
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _digest(blobs: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(f"{blobs[path]} {path}\n" for path in sorted(blobs)).encode()).hexdigest()
