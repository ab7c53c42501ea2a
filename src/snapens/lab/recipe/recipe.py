"""Recipe: everything that defines a run; nothing else does."""

import difflib
import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Literal, get_type_hints

from ...errors import ArgumentError
from ...schedule import CyclicCosine, Schedule, StepDecay
from ...storage import jsonfile

Restart = Literal["warm", "fresh"]
METHODS = ("single", "snapshot", "singlecycle", "grow")


@dataclass(frozen=True)
class Recipe:
    """A network, a data set, a method and a budget.

    Examples:
        >>> recipe = Recipe(network="resnet110", dataset="cifar100", method="snapshot", lr=0.2)
        >>> recipe.schedule(50_000).snapshot_steps
        (31250, 62500, 93750, 125000, 156250)
        >>> Recipe.loads(recipe.dumps()) == recipe
        True
    """

    network: str = "resnet110"
    """resnet110, wrn32, densenet40, densenet100, resnet50, small, torchvision:NAME, timm:NAME, or your own as
    module:callable."""
    dataset: str = "cifar100"
    """cifar10, cifar100, svhn, svhn-extra, tinyimagenet, imagenet, glyphs, or your own as a folder or as arrays."""
    method: Literal["single", "snapshot", "singlecycle", "grow"] = "snapshot"
    """single: the rate falls at 50 % and 75 %, and the snapshots kept on the way are NoCycle's; snapshot: cosine
    cycles; singlecycle: every cycle from fresh weights; grow: cycles that begin as `pattern` says."""
    epochs: int = 200
    """B: how often each training image is seen."""
    cycles: int = 5
    """M: how many snapshots are kept."""
    lr: float = 0.1
    """The peak of the learning rate."""
    batch: int = 64
    """Images in a step."""
    seed: int = 0
    """Of weights, order, crops and dropout."""
    dropout: float = 0.0
    """The probability with which a node is dropped."""
    stem_stride: int = 1
    """The stride of the first layer; the paper has 2 for Tiny ImageNet."""
    weight_decay: float = 1e-4
    """On all parameters."""
    momentum: float = 0.9
    """Nesterov's."""
    warmup_epochs: int = 0
    """Epochs of a rising rate before the first cycle, inside `epochs`."""
    pattern: tuple[Restart, ...] = ()
    """For grow: how each cycle but the first begins, repeated as needed: `warm warm fresh`."""
    held_out: int = 0
    """Training images set aside for what is chosen later."""
    held_out_seed: int = 0
    """Which images those are."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Recipe).items():
            _require(_fits(getattr(self, name), kind), name, f"be of type {_named(kind)}", getattr(self, name))
        object.__setattr__(self, "pattern", tuple(self.pattern))
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        for name, least in (("epochs", 1), ("cycles", 1), ("batch", 1), ("stem_stride", 1)):
            _require(getattr(self, name) >= least, name, f"be at least {least}", getattr(self, name))
        for name in ("seed", "held_out", "held_out_seed", "warmup_epochs", "weight_decay"):
            _require(0 <= getattr(self, name) < float("inf"), name, "be finite and at least 0", getattr(self, name))
        for name in ("seed", "held_out_seed"):
            _require(getattr(self, name) < 1 << 63, name, "be less than 2 to the 63", getattr(self, name))
        _require(0 < self.lr < float("inf"), "lr", "be a finite number greater than 0", self.lr)
        _require(0 <= self.dropout < 1, "dropout", "be at least 0 and less than 1", self.dropout)
        _require(0 < self.momentum < 1, "momentum", "be more than 0 and less than 1", self.momentum)
        known = all(word in ("warm", "fresh") for word in self.pattern)
        _require(
            known and bool(self.pattern) == (self.method == "grow"),
            "pattern",
            "be words 'warm' or 'fresh' for the method grow, and empty for the others",
            self.pattern,
        )

    def schedule(self, images: int) -> Schedule:
        """The schedule over `epochs` of so many training images; batches may straddle two epochs."""
        total, warmup = (epochs * images // self.batch for epochs in (self.epochs, self.warmup_epochs))
        if total - warmup < self.cycles:
            raise ArgumentError(
                f"epochs must give at least one step per cycle after the warm-up, got {total - warmup} steps "
                f"({self.epochs} epochs of {images} images in batches of {self.batch}, warmup_epochs="
                f"{self.warmup_epochs}) for cycles={self.cycles}: use more epochs, fewer cycles or a smaller batch"
            )
        if self.method == "single":
            return StepDecay(total, self.cycles, warmup_steps=warmup)
        return CyclicCosine(total, self.cycles, warmup_steps=warmup)

    def begins_fresh(self, cycle: int) -> bool:
        """Whether a cycle, counted from 0, starts from new weights; the first always does."""
        if cycle == 0 or self.method == "singlecycle":
            return True
        return bool(self.pattern) and self.pattern[(cycle - 1) % len(self.pattern)] == "fresh"

    def dumps(self) -> str:
        """As JSON."""
        return json.dumps(vars(self), indent=1, allow_nan=False)

    @classmethod
    def loads(cls, text: str | bytes) -> "Recipe":
        """From JSON, each field of its own type."""
        try:
            content = jsonfile.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"a recipe must be JSON, got {error}") from error
        return cls.of(content)

    @classmethod
    def of(cls, content: Any) -> "Recipe":
        """From a mapping of its fields, each of its own type; missing ones have their default."""
        if not isinstance(content, dict):
            raise ArgumentError(f"a recipe must be an object of fields, got {type(content).__name__}")
        known = [field.name for field in fields(cls)]
        for name in content:
            if name not in known:
                raise unknown("field", name, known)
        return cls(**content)

    def differences(self, other: "Recipe") -> list[str]:
        """`field: ours, theirs` for each field that differs."""
        return [
            f"{field.name}: {getattr(self, field.name)!r}, {getattr(other, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]


def unknown(what: str, name: object, known: Collection[str]) -> ArgumentError:
    """The error for a name that is none of the known ones; it shows the nearest."""
    near = difflib.get_close_matches(str(name).lower(), known, n=3, cutoff=0.6)
    some = sorted(known)[:12]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(some)}{' …' * (len(known) > 12)}"
    return ArgumentError(f"{what} must be a known one, got {name!r}: {hint}")


def _fits(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
    if kind is str or (hasattr(kind, "__args__") and all(isinstance(word, str) for word in kind.__args__)):
        return isinstance(value, str)
    return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)


def _named(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind)) if kind in (int, float, str) else "text or a list of words"


def _require(rule: bool, argument: str, must: str, value: Any) -> None:
    if not rule:
        raise ArgumentError(f"{argument} must {must}, got {value!r}")
