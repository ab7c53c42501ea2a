"""Run folders: what a run was, what happened, where it stands, what its members say."""

import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ArgumentError, DamagedError, MismatchError, StoreError
from ...outputs import Outputs
from ...snapshots import Snapshots
from ...storage import durable, jsonfile, tensorfile
from ...storage.typed import decoded
from ..recipe.recipe import Recipe
from .curves import Between

log = logging.getLogger("snapens")

_OUTPUTS = "outputs.safetensors"


@dataclass(frozen=True)
class State:
    """Where a run stands: the tensors that a step changes, and what else it takes to go on."""

    completed: int
    tensors: Mapping[str, Tensor]
    notes: dict[str, Any]


class Run:
    """A run folder, to be read by anyone at any time and written by the one who trains."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._sound: bytes | None = None  # what was written of the state that was read or kept last

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def exists(self) -> bool:
        """Whether a run was begun in this folder."""
        return (self.path / "recipe.json").exists()

    @cached_property
    def recipe(self) -> Recipe:
        """What defines the run."""
        return Recipe.of(self._about["recipe"])

    @property
    def data(self) -> dict[str, Any]:
        """Class names, image size and normalisation: what it takes to predict."""
        described: dict[str, Any] = self._about["data"]
        return described

    def prepared(self, pixels: NDArray[np.uint8]) -> Tensor:
        """What the members expect: uint8 pixels (images, size, size, channels), normalised, channels first."""
        pixels = np.asarray(pixels)
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
        """Whether all its steps were taken."""
        return self.last_words is not None

    @property
    def last_words(self) -> dict[str, Any] | None:
        """What the log says of the end: seconds, device, software; None before it."""
        *_, last = None, *(line for line in self.log() if line.get("event") == "finished")
        return last

    def admit(self, recipe: Recipe, resume: bool) -> None:
        """Make sure that a run of this recipe may begin here, or go on."""
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
        """Make sure that the run is one of this recipe."""
        if differences := self.recipe.differences(recipe):
            raise MismatchError(
                f"recipe must be that of the run in {self.path} to resume it, got (there, now) {'; '.join(differences)}"
            )

    def begin(self, recipe: Recipe, data: Mapping[str, Any]) -> None:
        """Write down what the run is, or make sure that it is the one begun here before."""
        if self.exists:
            self.require(recipe)
            if differing := [key for key in {**self.data, **data} if self.data.get(key) != data.get(key)]:
                raise MismatchError(
                    f"data must be that of the run in {self.path} to resume it, got other {', '.join(differing)}"
                )
            return
        content = {"recipe": vars(recipe), "data": dict(data)}
        publish(self.path / "recipe.json", [jsonfile.dumps(content)])

    def note(self, event: str, **values: Any) -> None:
        """Add a line to the log."""
        line = json.dumps({"event": event, **values}, allow_nan=False)
        with open(self.path / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def log(self) -> Iterator[dict[str, Any]]:
        """The lines of the log; a line cut off by a kill is left out."""
        path = self.path / "log.jsonl"
        try:
            with open(path, encoding="utf-8") as file:
                for line in file:
                    with suppress(ValueError, TypeError):
                        yield dict(jsonfile.loads(line))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{path} could not be read ({error}): check who may read it") from error

    def save(self, state: State) -> None:
        """Keep a state; the one before stays until the next."""
        folder = self.path / "state"
        folder.mkdir(exist_ok=True)
        name = f"step-{state.completed:09d}-{secrets.token_hex(6)}.safetensors"
        digest = publish(folder / name, tensorfile.encode(_on_host(state.tensors)))
        about = {"completed": state.completed, "file": name, **digest._asdict(), "notes": state.notes}
        current, previous = folder / "state.json", folder / "state.previous.json"
        kept = {name}
        if self._sound is not None:  # not what lies in `current`: that may be damaged, and `previous` all there is
            publish(previous, [self._sound])
            kept.add(jsonfile.loads(self._sound)["file"])
        content = jsonfile.dumps(about)
        publish(current, [content])
        self._sound = content
        for path in folder.glob("step-*"):
            if path.name not in kept:
                with suppress(OSError):  # the state stands; what is left over only takes room, until the next one
                    path.unlink()

    def state(self) -> State | None:
        """The state kept last, or the one before where that one is damaged; None before the first."""
        found = [
            path for name in ("state.json", "state.previous.json") if (path := self.path / "state" / name).exists()
        ]
        for path in found:
            try:
                state = _read_state(path)
                self._sound = path.read_bytes()
                return state
            except DamagedError as error:
                if path == found[-1]:
                    raise
                log.warning("%s; going on from the state before", error)
        return None

    def forget(self, completed: int) -> None:
        """Drop what the log says of steps after `completed`: training will come past them again."""
        kept = [json.dumps(line) + "\n" for line in self.log() if line.get("step", 0) <= completed]
        publish(self.path / "log.jsonl", ["".join(kept).encode()])

    def add_outputs(self, step: int, found: Mapping[str, tuple[Tensor, Tensor]], *, anew: bool = False) -> str:
        """Append a member's outputs: for each part of the data log-probabilities (examples, classes) and labels.

        What is there is dropped if `anew`. Returns the SHA-256 of the file, for the log.
        """
        before = {} if anew else self._stored_outputs()
        steps = before["steps"].tolist() if before else []
        earlier = sum(1 for other in steps if other < step)  # later ones are of before a resume
        stored = {"steps": torch.tensor([*steps[:earlier], step])}
        for part, (outputs, labels) in found.items():
            rows = [before[part][:earlier]] if earlier else []
            stored[part] = torch.cat([*rows, outputs[None]])
            stored[f"{part}_labels"] = labels
        return publish(self.path / _OUTPUTS, tensorfile.encode(stored)).sha256

    def outputs(self, part: str = "test") -> Outputs:
        """What the members say of the "test" or "held_out" images; members are those of `snapshots.steps`."""
        stored, path = self._stored_outputs(), self.path / _OUTPUTS
        if part not in stored:
            held_out = "; train with held_out=N to have some" if part == "held_out" else ""
            raise StoreError(f"{self.path} holds no outputs of the {part} images{held_out}")
        if not (members := self.snapshots.steps):
            raise StoreError(f"{self.path} holds no snapshot yet: wait for the first minimum")
        try:
            steps, outputs, labels = stored["steps"].tolist(), stored[part].numpy(), stored[f"{part}_labels"].numpy()
            if outputs.shape[:2] != (len(steps), len(labels)) or not np.isfinite(outputs.max(-1)).all():
                raise ValueError(f"{outputs.shape} for {len(steps)} steps and {len(labels)} labels, or not a number")
            if labels.dtype != np.int64 or labels.min() < 0 or labels.max() >= outputs.shape[-1]:
                raise ValueError(f"labels that are not of its {outputs.shape[-1]} classes")
            if self.outputs_sha256(steps[-1]) not in (None, durable.digest(path).sha256):
                raise ValueError("another SHA-256 than the log has")
            return Outputs(outputs[[steps.index(step) for step in members]], labels)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(
                f"{path} must hold what every member says, got {error}: restore it, or resume the run to have it again"
            ) from error

    def outputs_sha256(self, step: int) -> str | None:
        """What the log says of the outputs up to a step."""
        noted = [line["outputs_sha256"] for line in self.log() if "outputs_sha256" in line and line.get("step") == step]
        return str(noted[-1]) if noted else None

    def keep_curves(self, curves: Between) -> None:
        """Write down what was measured between the snapshots."""
        publish(self.path / "curves.json", [jsonfile.dumps(asdict(curves))])

    def curves(self) -> Between | None:
        """What was measured between the snapshots, if it was."""
        path = self.path / "curves.json"
        if not path.exists():
            return None
        try:
            curves: Between = decoded(Between, jsonfile.read(path), "curves")
            if any(line.snapshot >= len(self.snapshots.steps) for line in curves.lines):
                raise ArgumentError(f"lines of more than {len(self.snapshots.steps)} snapshots")
            return curves
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedError(f"{path} must be what snapens wrote, got {error}: remove it") from error

    def _stored_outputs(self) -> dict[str, Tensor]:
        path = self.path / _OUTPUTS
        return {name: entry.read() for name, entry in tensorfile.entries(path).items()} if path.exists() else {}

    @cached_property
    def _about(self) -> dict[str, Any]:
        path = self.path / "recipe.json"
        try:
            content = jsonfile.read(path)
            Recipe.of(content["recipe"])
            data = dict(content["data"])
            kinds = {"classes": list, "images": dict}
            if wrong := [name for name, kind in kinds.items() if not isinstance(data.get(name, kind()), kind)]:
                raise ValueError(f"other {' and '.join(wrong)}")
            return {"recipe": content["recipe"], "data": data}
        except OSError:
            raise StoreError(f"run must be a folder that holds recipe.json, got {self.path}: check the path") from None
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DamagedError(f"{path} must be what snapens wrote, got {error}: restore the file") from error


def runs_in(path: Path) -> list[Run]:
    """The run in a folder; where there is none, those in its sub-folders that have a member, by name."""
    run = Run(path)
    below = [] if run.exists else [Run(folder) for folder in sorted(path.glob("*/")) if Run(folder).exists]
    spoken = [found for found in below if (found.path / _OUTPUTS).exists()]
    for silent in set(below) - set(spoken) if spoken else ():
        log.warning("%s is left out: it has no outputs of snapshots yet", silent.path)
    return spoken or below or [run]


def require_same_test(run: Run, labels: NDArray[np.int64], other: Run, other_labels: NDArray[np.int64]) -> None:
    """Make sure that two runs, of which these are the test labels, were tested on the same images in the same order."""
    (classes, images), (other_classes, other_images) = (
        (one.data.get("classes"), one.data.get("images", {}).get("test")) for one in (run, other)
    )
    # equal labels are not yet equal images: folders sorted by class often have them
    differ = classes != other_classes or (images and other_images and images != other_images)
    if differ or not np.array_equal(labels, other_labels):
        raise MismatchError(
            f"runs must have been tested on the same images in the same order, but those of {run.path} and "
            f"{other.path} differ: take the runs of one data set"
        )


def publish(path: Path, chunks: Iterable[bytes | memoryview]) -> durable.Digest:
    """Write a file of a run folder, whole or not at all."""
    try:
        return durable.publish(path, chunks)
    except OSError as error:
        raise StoreError(
            f"{path} could not be written ({error}); what was kept before is intact: make room, then resume"
        ) from error


def _read_state(path: Path) -> State:
    try:
        about = jsonfile.read(path)
        file = path.parent / Path(about["file"]).name
        if durable.digest(file) != durable.Digest(about["sha256"], about["bytes"]):
            raise DamagedError(f"{file} must have the SHA-256 that {path.name} has, but it was altered")
        tensors = {name: entry.read() for name, entry in tensorfile.entries(file).items()}
        return State(int(about["completed"]), tensors, dict(about["notes"]))
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedError(
            f"{path} must be a state as snapens wrote it, got {type(error).__name__}: {error}"
        ) from error


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
