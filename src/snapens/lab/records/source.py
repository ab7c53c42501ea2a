"""Source: identifies the code that trains a run by the git hashes of its files."""

import hashlib
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


@cache
def digest() -> str:
    """The digest of the package's modules at the time of the first call."""
    return _digest({path.relative_to(_PACKAGE).as_posix(): _blob(path) for path in _PACKAGE.rglob("*.py")})


def digest_at(commit: str) -> str | None:
    """The `digest` of a commit, from the repository of the package or of the current folder; None if neither has it."""
    command = ["git", "ls-tree", "-r", "--full-tree", f"{commit}:src/{_PACKAGE.name}"]
    for folder in (_PACKAGE, Path.cwd()):
        with suppress(OSError, subprocess.CalledProcessError):
            listed = subprocess.run(command, cwd=folder, capture_output=True, check=True, text=True).stdout
            files = (line.split("\t") for line in listed.splitlines())  # "mode type name", path
            return _digest({path: about.split()[-1] for about, path in files if path.endswith(".py")})
    return None


def _blob(path: Path) -> str:
    """The git hash of a file; Windows line endings are converted first."""
    content = path.read_bytes().replace(b"\r\n", b"\n")
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _digest(blobs: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(f"{blobs[path]} {path}\n" for path in sorted(blobs)).encode()).hexdigest()
