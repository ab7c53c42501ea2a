"""Run folders: what a run is, what happened, its state, and what its members predicted."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ArgumentError, DamagedError, MismatchError, StoreError
from ...outputs import Outputs
from ...snapshots import Snapshots
from ...storage import durable, parts, sealed, tensorfile
from ...storage.typed import decoded
from ..recipe.recipe import Recipe
from .curves import Between
from .log import Log
from .state import State as State
from .state import States, writing

log = logging.getLogger("snapens")

T = TypeVar("T")

_FILES = ("recipe.json", "log.jsonl", "curves.json")  # written here, and by no other process


@dataclass(frozen=True)
class _About:
    """What `recipe.json` holds."""

    recipe: Recipe
    data: dict[str, Any]

    def __post_init__(self) -> None:
        for name, kind in (("classes", list), ("images", dict), ("augmentation", dict)):
            if not isinstance(self.data.get(name, kind()), kind):
                raise ArgumentError(f"data must have {name} of type {kind.__name__}, got {self.data[name]!r}")


class Run:
    """A run folder: anyone may read it at any time; the training process writes it."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._states = States(self.path / "state")
        self._log = Log(self.path / "log.jsonl")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def exists(self) -> bool:
        """Whether a run was started in this folder."""
        return (self.path / "recipe.json").exists()

    @property
    def recipe(self) -> Recipe:
        """What defines the run."""
        return self._about.recipe

    @property
    def data(self) -> dict[str, Any]:
        """Class names, image size and normalisation: what a prediction needs."""
        return self._about.data

    def prepared(self, examples: NDArray[Any]) -> Tensor:
        """The members' inputs: uint8 pixels (images, size, size, channels), normalised, or rows, standardised."""
        pixels = np.asarray(examples)
        if "features" in self.data:
            if pixels.ndim != 2 or pixels.shape[1] != self.data["features"]:
                raise ArgumentError(f"rows must be (rows, {self.data['features']}), got the shape {pixels.shape}")
            return torch.from_numpy(((pixels - self.data["mean"]) / self.data["deviation"]).astype(np.float32))
        wanted = (self.data["size"], self.data["size"], self.data["channels"])
        if pixels.dtype != np.uint8 or pixels.shape[1:] != wanted:
            raise ArgumentError(
                f"pixels must be uint8 of shape (images, {str(wanted)[1:]}, got {pixels.dtype} of {pixels.shape}"
            )
        mean, deviation = (torch.tensor(self.data[name], dtype=torch.float32) for name in ("mean", "deviation"))
        return ((torch.from_numpy(pixels).float() - mean) / deviation).permute(0, 3, 1, 2)

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots committed so far."""
        return Snapshots(self.path)

    @property
    def finished(self) -> bool:
        """Whether all its steps were taken, and all its snapshots still exist."""
        return self.finish_event is not None and len(self.snapshots.steps) >= self.recipe.method.cycles

    @property
    def finish_event(self) -> dict[str, Any] | None:
        """The log's last line about the end: seconds, device, software; None before the end."""
        *_, last = None, *(line for line in self.log() if line.get("event") == "finished")
        return last

    def admit(self, recipe: Recipe, resume: bool) -> None:
        """Make sure that a run of this recipe may start or continue here."""
        if self.exists and not resume:
            raise StoreError(f"run must be a folder without a run, got {self.path}: choose another, or resume that one")
        if self.exists:
            self.require(recipe)
        elif (self.path / "state").exists():
            raise DamagedError(
                f"{self.path} must hold recipe.json beside the state that is there, got none: restore it, or choose "
                "another folder"
            )

    def require(self, recipe: Recipe) -> None:
        """Make sure that the run has this recipe."""
        if differences := self.recipe.differences(recipe):
            raise MismatchError(
                f"recipe must be that of the run in {self.path} to resume it, got (there, now) {'; '.join(differences)}"
            )

    def begin(self, recipe: Recipe, data: Mapping[str, Any]) -> None:
        """Write down what the run is, or make sure that it is the one that was started here before."""
        if self.exists:
            self.require(recipe)
            if differing := [key for key in self.data if self.data[key] != data.get(key)]:
                raise MismatchError(
                    f"data must be that of the run in {self.path} to resume it, got other {', '.join(differing)}"
                )
            return
        content = {"recipe": recipe.written(), "data": dict(data)}
        self._publish("recipe.json", sealed.encode("recipe", self._named(), content))

    def note(self, event: str, **values: Any) -> None:
        """Add a line to the log."""
        self._log.append(self._named(), {"event": event, **values})

    def log(self) -> Iterator[dict[str, Any]]:
        """The lines of the log; a last line that a kill cut off is left out."""
        return self._log.lines(self.identity)

    def forget(self, completed: int) -> None:
        """Drop the log's lines about steps after `completed`: training will reach these steps again."""
        with writing(self._log.path):
            self._log.keep(self._named(), lambda line: line.get("step", 0) <= completed)

    def save(self, state: State) -> None:
        """Keep a state; the one before stays until the next."""
        self._states.save(self._named(), state)
        with suppress(OSError):  # what a killed writer left only takes room until the next time
            durable.sweep(self.path, re.compile("|".join(_FILES)), _FILES)

    def state(self) -> State | None:
        """The state kept last, or the one before if that one cannot be used; None before the first.

        A state cannot be used if it is damaged, or if snapshots that existed when it was kept are lost.
        """
        return self._states.load(self.identity, self.snapshots.identity["snapshots"] if self.identity else {})

    def add_outputs(self, step: int, found: Mapping[str, tuple[Tensor, Tensor]], snapshot: str | None = None) -> None:
        """Keep a member's outputs: for each part of the data log-probabilities (examples, classes) and labels.

        `snapshot` is the name of its snapshot if that is committed afterwards.
        """
        for part, (outputs, labels) in found.items():
            Outputs((step,), outputs[None].numpy(), labels.numpy()).append(self.path, part, snapshot)

    def intact_outputs(self, part: str) -> set[int]:
        """The steps of the members whose outputs are there and intact."""
        files, found = parts.PartFolder(self.path, part), set()
        for step in files.snapshots:
            with suppress(DamagedError):
                self._check_format_1(part)
                files.member(step)
                found.add(step)
        return found

    def outputs(self, part: str = "test") -> Outputs:
        """What the members predicted for the "test" or "held_out" images; members are those of `snapshots.steps`."""
        self._check_format_1(part)
        return Outputs.load(self.path, part)

    def keep_curves(self, curves: Between) -> None:
        """Keep what was measured between the snapshots."""
        self._publish("curves.json", sealed.encode("curves", self._named(), asdict(curves)))

    def curves(self) -> Between | None:
        """What was measured between the snapshots, if it was."""
        path = self.path / "curves.json"
        try:
            curves = self._sealed("curves", Between)
        except FileNotFoundError:
            return None
        if any(line.snapshot >= len(self.snapshots.steps) for line in curves.lines):
            raise DamagedError(
                f"{path} must be what snapens wrote, got lines of more than {len(self.snapshots.steps)} snapshots: "
                "remove the file"
            )
        return curves

    @cached_property
    def identity(self) -> str | None:
        """The identity of the run, which each of its files names; None before the manifest exists."""
        return self.snapshots.identity["run"] if (self.path / "manifest.json").exists() else None

    @cached_property
    def _about(self) -> _About:
        try:
            return self._sealed("recipe", _About)
        except (FileNotFoundError, NotADirectoryError):
            remedy = "check the path"
            if (self.path / "manifest.json").exists():
                remedy = "it holds snapshots of a loop of your own, and this command needs a run of `snapens train`"
            raise StoreError(f"run must be a folder that holds recipe.json, got {self.path}: {remedy}") from None

    def _named(self) -> str:
        """The identity of the run, for a file that is written; the manifest is created if necessary."""
        if self.identity is None:
            del self.identity
            snapshots = self.snapshots
            snapshots.open_to_write()
            snapshots.close()
        return str(self.identity)

    def _sealed(self, kind: str, form: type[T]) -> T:
        """What a file holds; format 1 had the same fields without a seal."""
        path = self.path / f"{kind}.json"
        return sealed.read(
            path, kind, form, run=self.identity, format_1=lambda content: decoded(form, content, kind)
        ).value

    def _publish(self, name: str, content: bytes) -> None:
        with writing(self.path / name):
            durable.publish(self.path / name, [content])

    def _check_format_1(self, part: str) -> None:
        """Compare the outputs of format 1, if needed, with the SHA-256 that the log has for their last step."""
        path = self.path / parts.FORMAT_1
        if not path.exists() or not parts.PartFolder(self.path, part).needs_format_1:
            return
        steps, sha256 = tensorfile.entries(path).get("steps"), durable.digest(path).sha256
        last = steps.read().tolist()[-1:] if steps else []
        noted = [line["outputs_sha256"] for line in self.log() if "outputs_sha256" in line and [line["step"]] == last]
        if noted and noted[-1] != sha256:
            raise DamagedError(
                f"{path} must have the SHA-256 in the log, but it was altered: restore it, or resume the run"
            )


def runs_in(path: Path) -> list[Run]:
    """The run in a folder; if there is none, those in its sub-folders that have outputs, by name."""
    run = Run(path)
    below = [] if run.exists else [Run(folder) for folder in sorted(path.glob("*/")) if Run(folder).exists]
    names = ("outputs", parts.FORMAT_1)
    with_outputs = [found for found in below if any((found.path / name).exists() for name in names)]
    for without in set(below) - set(with_outputs) if with_outputs else ():
        log.warning("%s is left out: it has no outputs of snapshots yet", without.path)
    return with_outputs or below or [run]


def same_data(run: Run, other: Run) -> bool:
    """Whether two runs have the same classes and, as far as they say which, the same test images."""
    (classes, images), (other_classes, other_images) = (
        (one.data.get("classes"), one.data.get("images", {}).get("test")) for one in (run, other)
    )
    return classes == other_classes and (not images or not other_images or images == other_images)


def require_same_test(run: Run, labels: NDArray[np.int64], other: Run, other_labels: NDArray[np.int64]) -> None:
    """Make sure that two runs, of which these are the test labels, were tested on the same images in the same order."""
    # equal labels are not yet equal images: folders sorted by class often have them
    if not same_data(run, other) or not np.array_equal(labels, other_labels):
        raise MismatchError(
            f"runs must have been tested on the same images in the same order, but those of {run.path} and "
            f"{other.path} differ: take the runs of one data set"
        )
