"""Outputs in format 1: those of all members and all parts of the data in one file, whose SHA-256 is in the log."""

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ...errors import DamagedError
from ...storage import durable, tensorfile
from ...storage.parts import FORMAT_1, PartFolder

if TYPE_CHECKING:
    from .run import Run


def adopt_outputs(run: "Run", names: Iterable[str]) -> None:
    """Rewrite the intact outputs of some parts in the current format, so that each belongs to its snapshot."""
    path = run.path / FORMAT_1
    if not durable.exists(path):
        return
    for part in names:
        files = PartFolder(run.path, part)
        if files.is_format_1 and files.snapshots:
            with suppress(DamagedError):  # the caller recomputes what is damaged
                run.outputs(part).save(run.path, part)
    with durable.writing(path):
        path.unlink()


def check_outputs(run: "Run", part: str) -> None:
    """Compare the file, if the outputs of a part are in it, with the SHA-256 that the log has for its last step."""
    path = run.path / FORMAT_1
    if not durable.exists(path) or not PartFolder(run.path, part).is_format_1:
        return
    steps, sha256 = tensorfile.header(path)[0].get("steps"), durable.digest(path).sha256
    last = steps.read().tolist()[-1:] if steps else []
    noted = [line["outputs_sha256"] for line in run.log() if "outputs_sha256" in line and [line.get("step")] == last]
    if noted and noted[-1] != sha256:
        raise DamagedError(
            f"{path} must have the SHA-256 in the log, but it was altered: restore it, or resume the run"
        )
