"""Run folders: the recipe of a run, its log, its state, and the outputs of its members."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...combination import Combination
from ...ensemble import Ensemble
from ...errors import ArgumentError, DamagedError, MismatchError, StoreError
from ...outputs import Outputs
from ...snapshots import Snapshots
from ...storage import durable, manifest, parts, sealed
from ...storage.typed import decoded
from .. import nets
from ..recipe.preprocessing import Preprocessing, from_flat
from ..recipe.recipe import Recipe
from . import format_1
from .curves import Between
from .log import Log
from .state import State as State
from .state import States

T = TypeVar("T")

_FILES = ("recipe.json", "log.jsonl", "curves.json")  # written only here


@dataclass(frozen=True)
class _About:
    """The content of `recipe.json`."""

    recipe: Recipe
    data: dict[str, Any]

    def __post_init__(self) -> None:
        for name, kind in (("classes", list), ("images", dict), ("augmentation", dict)):
            if not isinstance(self.data.get(name, kind()), kind):
                raise ArgumentError(f"data must have {name} of type {kind.__name__}, got {self.data[name]!r}")
        object.__setattr__(self, "data", from_flat(self.data))


def runs_below(folder: Path) -> "list[Run]":
    """The runs in the sub-folders of a folder, by name."""
    return [run for run in map(Run, durable.listed(folder)) if run.exists or run.is_own_loop]


class Run:
    """A run folder: it can be read at any time; only the training process writes to it."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._states = States(self.path / "state")
        self._log = Log(self.path / "log.jsonl")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def exists(self) -> bool:
        """Whether a run was started in this folder."""
        return durable.exists(self.path / "recipe.json")

    @property
    def is_own_loop(self) -> bool:
        """Whether a loop of the user's own wrote the snapshots, so that there is neither a recipe nor a log."""
        return self.identity is not None and not any(durable.exists(self.path / name) for name in (*_FILES, "state"))

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self._about.recipe

    @property
    def data(self) -> dict[str, Any]:
        """The names of the classes, the preprocessing, the augmentation, and the digests of the parts."""
        return self._about.data

    @property
    def preprocessing(self) -> Preprocessing:
        """How a raw example becomes an input of the network."""
        if "preprocessing" not in self.data:
            raise StoreError(
                f"recipe.json must describe the preprocessing of the run, but that in {self.path} does not"
            )
        return Preprocessing.of(self.data["preprocessing"])

    def ensemble(
        self,
        *,
        last: int | None = None,
        combination: Combination | None = None,
        raw: bool = True,
        resident: bool = True,
        device: torch.device | str | None = None,
        import_network: bool = False,
    ) -> Ensemble:
        """The ensemble of the run's snapshots, with the network of its recipe.

        Its inputs are raw examples: tensors of uint8 pixels (images, size, size, channels), or of rows (rows,
        features). With `raw=False` they are the inputs of the network, as `preprocessing` makes them. The other
        arguments are those of `Ensemble`. A network that the folder names as module:callable is imported only with
        `import_network`.
        """
        self.require_trust(import_network)
        preprocessing = self.preprocessing
        self.require_snapshot()
        return Ensemble(
            self.snapshots,
            nets.of(self.recipe, len(self.data["classes"]), preprocessing.inputs, pretrained=False),
            last=last,
            combination=combination,
            preprocess=preprocessing.module() if raw else None,
            resident=resident,
            device=device,
        )

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots committed so far."""
        return Snapshots(self.path)

    @property
    def finished(self) -> bool:
        """Whether all steps are completed, and all snapshots still exist."""
        return self.finish_event is not None and len(self.snapshots.steps) >= self.recipe.method.cycles

    @property
    def finish_event(self) -> dict[str, Any] | None:
        """The line of the log about the end of the run: seconds, device, software; None before the end."""
        *_, last = None, *(line for line in self.log() if line.get("event") == "finished")
        return last

    def admit(self, recipe: Recipe, resume: bool) -> None:
        """Check that a run of this recipe can start or continue in this folder."""
        if self.exists and not resume:
            raise StoreError(
                f"run must be a folder without a run, got {self.path}: choose another folder (--out), or continue the "
                "run with --resume"
            )
        if self.exists:
            self.require(recipe)
        elif durable.exists(self.path / "state"):
            raise DamagedError(
                f"{self.path} contains a state, but recipe.json is missing: restore it, or choose another folder"
            )

    def require(self, recipe: Recipe) -> None:
        """Check that the run has this recipe."""
        if differences := self.recipe.differences(recipe):
            raise MismatchError(
                f"recipe must be that of the run in {self.path} to resume it, got (old, new) {'; '.join(differences)}: "
                "use the same settings, or another folder (--out)"
            )

    def require_snapshot(self) -> None:
        """Check that there is a run, and that a run of the lab has reached its first snapshot."""
        if not self.exists and self.identity is None:
            raise self._absent("manifest.json")
        if self.exists and not self.snapshots.steps:
            raise StoreError(
                f"run must contain a snapshot, got {self.path}, which stopped before its first one (or is still "
                "training): its command with --resume continues it"
            )

    def require_trust(self, import_network: bool) -> None:
        """Check that the user agrees to import the network, if it is module:callable."""
        name = self.recipe.network.name
        if nets.is_own(name) and not import_network:
            raise ArgumentError(
                f"import_network must be given for the network {name!r} of {self.path}, which is code that would be "
                "executed: if you trust it, add --import-network (in Python, import_network=True)"
            )

    def begin(self, recipe: Recipe, data: Mapping[str, Any]) -> None:
        """Write `recipe.json`, or check that it has the same recipe and data."""
        if self.exists:
            self.require(recipe)
            if differing := [key for key in self.data if self.data[key] != data.get(key)]:
                raise MismatchError(
                    f"data must be that of the run in {self.path} to resume it, got other {', '.join(differing)}"
                )
            return
        self._seal("recipe", {"recipe": recipe.written(), "data": dict(data)})

    def note(self, event: str, **values: Any) -> None:
        """Add a line to the log."""
        self._log.append(self._named(), {"event": event, **values})
        if event == "finished":  # no state follows, with which the log would be synced
            self._log.sync()

    def log(self) -> Iterator[dict[str, Any]]:
        """The lines of the log; a truncated last line is ignored."""
        return self._log.lines(self.identity)

    def forget(self, completed: int) -> None:
        """Remove the lines of the log about steps after `completed`: training will reach these steps again."""
        self._log.keep(self._named(), lambda line: line.get("step", 0) <= completed)

    def save(self, state: State) -> None:
        """Save a state, after the lines of the log up to it; the previous state is kept until the next one is saved."""
        self._log.sync()
        self._states.save(self._named(), state)
        with suppress(OSError):  # files of a killed writer only use disk space until the next time
            durable.sweep(self.path, re.compile("|".join(_FILES)), _FILES)

    def state(self) -> State | None:
        """The last state, or the previous one if the last cannot be used; None before the first state.

        A state cannot be used if it is damaged, or if snapshots that existed when it was saved are lost.
        """
        return self._states.load(self.identity, self.snapshots.identity["snapshots"] if self.identity else {})

    def add_outputs(
        self,
        step: int,
        found: Mapping[str, tuple[Tensor, Tensor]],
        snapshot: str | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Keep a member's outputs: for each part of the data log-probabilities (examples, classes) and labels.

        `snapshot` is the name of its snapshot if that is committed afterwards. With `replace`, no others are kept.
        """
        for part, (outputs, labels) in found.items():
            member = Outputs(((self._named(), step),), outputs[None].numpy(), labels.numpy())
            member.append(self.path, part, snapshot, replace=replace)

    def has_outputs(self, part: str) -> bool:
        """Whether outputs were saved for a part; an I/O error does not mean that there are none."""
        return parts.PartFolder(self.path, part).exists

    def intact_outputs(self, part: str) -> set[int]:
        """The steps of the members whose outputs exist and are intact."""
        files, found = parts.PartFolder(self.path, part), set()
        for step in files.snapshots:
            with suppress(DamagedError):
                files.member(step)
                found.add(step)
        return found

    def outputs(self, part: str = "test") -> Outputs:
        """The members' outputs for the "test" or "held_out" images; members are those of `snapshots.steps`."""
        self.require_snapshot()
        format_1.check_outputs(self, part)
        return Outputs.load(self.path, part)

    def keep_curves(self, curves: Between) -> None:
        """Store the errors between the snapshots."""
        self._seal("curves", asdict(curves))

    def curves(self) -> Between | None:
        """The errors between the snapshots; None if they were not measured."""
        try:
            curves = self._sealed("curves", Between)
        except FileNotFoundError:
            return None
        if any(line.snapshot >= len(self.snapshots.steps) for line in curves.lines):
            raise DamagedError(
                f"{self.path / 'curves.json'} must be unaltered, got lines of more than "
                f"{len(self.snapshots.steps)} snapshots: remove the file"
            )
        return curves

    @cached_property
    def identity(self) -> str | None:
        """The identity of the run, which each of its files contains; None before the manifest exists."""
        return self.snapshots.identity["run"] if durable.exists(self.path / "manifest.json") else None

    @cached_property
    def _about(self) -> _About:
        try:
            return self._sealed("recipe", _About)
        except (FileNotFoundError, NotADirectoryError):
            remedy = "check the path"
            if durable.exists(self.path / "manifest.json"):
                remedy = "it holds snapshots of a loop of your own, and this command needs a run of `snapens train`"
            raise self._absent("recipe.json", remedy) from None

    def _absent(self, file: str, remedy: str = "check the path") -> StoreError:
        """The error for a folder without a run; that for a folder of several runs names some of them."""
        remedy = manifest.run_below(self.path) or remedy
        return StoreError(f"run must be a folder that holds {file}, got {durable.described(self.path)}: {remedy}")

    def _named(self) -> str:
        """The identity of the run, to write a file; the manifest is created if necessary."""
        if self.identity is None:
            del self.identity
            snapshots = self.snapshots
            snapshots.open_to_write()
            snapshots.close()
        return str(self.identity)

    def _seal(self, kind: str, content: dict[str, Any]) -> None:
        """Write a file with a checksum."""
        path, encoded = self.path / f"{kind}.json", sealed.encode(kind, self._named(), content)
        with durable.writing(path):
            durable.publish(path, [encoded])

    def _sealed(self, kind: str, form: type[T]) -> T:
        """The content of such a file; format 1 had the same fields without a checksum."""
        path = self.path / f"{kind}.json"
        raw, of_format_1 = durable.contents(path), lambda content: decoded(form, content, kind)
        return sealed.decode(path, raw, kind, form, run=self.identity, format_1=of_format_1).value
