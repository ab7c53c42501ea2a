"""The manifest of a folder of snapshots: strict JSON in, strict JSON out."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DamagedError, StoreError
from . import jsonfile
from .durable import Digest

FORMAT = 1
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Record:
    """One snapshot: its completed step, the file it wrote, and the tensors that lie elsewhere.

    `shared` maps a name to (file, name in that file): what equals the snapshot before it, and
    what is tied to another name of its own.
    """

    step: int
    file: str
    shared: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """The identity of a run, the files of its snapshots, and the snapshots in the order of their steps."""

    run: str
    files: dict[str, Digest] = field(default_factory=dict)
    snapshots: tuple[Record, ...] = ()

    def upto(self, step: int) -> "Manifest":
        """Without the snapshots after `step`, and without the files that only they need."""
        kept = tuple(record for record in self.snapshots if record.step <= step)
        named = {record.file for record in kept}
        return Manifest(self.run, {name: digest for name, digest in self.files.items() if name in named}, kept)

    def adding(self, record: Record, digest: Digest) -> "Manifest":
        """With one more snapshot."""
        return Manifest(self.run, {**self.files, record.file: digest}, (*self.snapshots, record))

    def dumps(self) -> bytes:
        """As strict JSON."""
        content = {
            "format": FORMAT,
            "run": self.run,
            "files": {name: digest._asdict() for name, digest in self.files.items()},
            "snapshots": [vars(record) for record in self.snapshots],
        }
        return jsonfile.dumps(content)

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Read and check a manifest; what it names is inside its folder."""
        try:
            content = jsonfile.read(path)
            found = content["format"]
            if isinstance(found, int) and found > FORMAT:
                raise StoreError(
                    f"{path} must have format {FORMAT} or older to be read here, got {found}: install a newer snapens"
                )
            if found != FORMAT:
                raise ValueError(f"format {found!r}")
            return _checked(content)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreError(
                f"store must be a folder that holds {path.name}, got {path.parent}: check the path"
            ) from error
        except OSError as error:
            raise StoreError(f"{path} could not be read ({error}): check who may read it") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            previous = path.with_suffix(".previous.json")
            remedy = f"{previous.name} beside it is the one before: copy it over this one"
            raise DamagedError(
                f"{path} must be a manifest as snapens wrote it, got {type(error).__name__}: {error}; "
                f"{remedy if previous.exists() else 'restore the file'}"
            ) from error


def _checked(content: dict[str, Any]) -> Manifest:
    kinds = {"format": int, "run": str, "files": dict, "snapshots": list}
    _demand({key: type(value) for key, value in content.items()} == kinds, "its keys or their types")
    files = {name: Digest(**digest) for name, digest in content["files"].items()}
    for name, digest in files.items():
        _demand(
            _PLAIN.fullmatch(name) and _HEX.fullmatch(digest.sha256) and type(digest.bytes) is int, f"file {name!r}"
        )
    records: list[Record] = []
    for raw in content["snapshots"]:
        record = Record(raw["step"], raw["file"], {name: (file, key) for name, (file, key) in raw["shared"].items()})
        before = records[-1].step if records else 0
        _demand(type(record.step) is int and before < record.step, f"step {record.step!r} after {before}")
        allowed = {record.file, *(earlier.file for earlier in records)}
        elsewhere = all(file in allowed and type(key) is str for file, key in record.shared.values())
        _demand(elsewhere and allowed <= files.keys(), f"the files of step {record.step}")
        records.append(record)
    return Manifest(content["run"], files, tuple(records))


def _demand(rule: object, what: str) -> None:
    if not rule:
        raise ValueError(f"{what} cannot be right")
