"""Recipe: everything that defines a run; and its parts of which there is only one kind."""

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

from ...errors import ArgumentError
from ...schedule import Schedule
from .averaging import Averaging
from .batch import Transform
from .methods import Method, Snapshot
from .objectives import CrossEntropy, Objective
from .optimizers import SGD, Optimizer
from .sharpness import SAM
from .value import Value, require, require_at_least


@dataclass(frozen=True)
class Network(Value):
    """A network by name: one of `lab.nets.NETWORKS`, `torchvision:NAME`, `timm:NAME`, or your own `module:callable`."""

    name: str = "resnet110"
    dropout: float = 0.0
    """The dropout probability."""
    stem_stride: int = 1
    """The stride of the first layer; the paper uses 2 for Tiny ImageNet."""
    pretrained: bool = False
    """Whether training starts from the pretrained weights of torchvision or timm; only the last layer is new."""

    def check(self) -> None:
        """Dropout is a probability; the stride is at least 1."""
        require(0 <= self.dropout < 1, "dropout", "be at least 0 and less than 1", self.dropout)
        require_at_least(1, stem_stride=self.stem_stride)


@dataclass(frozen=True)
class Dataset(Value):
    """A data set by name, one of `lab.data.DATASETS`, and the number of training examples that are held out."""

    name: str = "cifar100"
    held_out: int = 0
    """The number of training examples that are held out, for example to choose m."""
    held_out_seed: int = 0
    """The seed that selects the held-out examples."""
    padding: int | None = None
    """Pixels of padding around an image before random cropping; None: the default of the data set."""

    def check(self) -> None:
        """Counts are at least 0."""
        require_at_least(0, held_out=self.held_out, held_out_seed=self.held_out_seed, padding=self.padding or 0)
        require(self.held_out_seed < 1 << 63, "held_out_seed", "be less than 2 to the 63", self.held_out_seed)


@dataclass(frozen=True)
class Budget(Value):
    """Epochs and the batch size."""

    epochs: int = 200
    """B: the number of passes over the training examples."""
    batch: int = 64
    """Examples per step."""
    warmup_epochs: int = 0
    """Warm-up epochs before the first cycle, included in `epochs`."""

    def check(self) -> None:
        """There is at least one epoch after the warm-up, and one example in a batch."""
        require_at_least(1, epochs=self.epochs, batch=self.batch)
        require_at_least(0, warmup_epochs=self.warmup_epochs)
        if self.warmup_epochs >= self.epochs:
            raise ArgumentError(
                f"warmup_epochs must be less than epochs={self.epochs}, got {self.warmup_epochs}: "
                "use more epochs, or a shorter warm-up"
            )


@dataclass(frozen=True)
class Recipe(Value):
    """A network, a data set, a method, a budget, and how a step is computed.

    Examples:
        >>> recipe = Recipe(Network("resnet110"), Dataset("cifar100"), optimizer=SGD(lr=0.2), seed=1)
        >>> recipe.schedule(50_000).snapshot_steps
        (31250, 62500, 93750, 125000, 156250)
        >>> recipe.identity
        '{"optimizer":{"kind":"sgd","lr":0.2},"seed":1}'
        >>> Recipe.of(recipe.written()) == recipe
        True
    """

    network: Network = field(default_factory=Network)
    dataset: Dataset = field(default_factory=Dataset)
    method: Method = field(default_factory=Snapshot)
    budget: Budget = field(default_factory=Budget)
    optimizer: Optimizer = field(default_factory=SGD)
    objective: Objective = field(default_factory=CrossEntropy)
    transforms: tuple[Transform, ...] | None = None
    """Applied in this order after cropping; None: the default of the data set."""
    averaging: Averaging | None = None
    """None: the trained weights themselves are stored."""
    seed: int = 0
    """The seed of weights, order, transforms and dropout."""
    batchnorm_parts: int = 1
    """The number of equal parts of a batch, one per process, whose BatchNorm statistics are computed separately."""
    sharpness: SAM | None = None
    """None: gradients are those at the weights themselves."""

    def check(self) -> None:
        """The seed fits into 63 bits; there is at least one part; SAM needs an example of the batch."""
        require_at_least(1, batchnorm_parts=self.batchnorm_parts)
        if self.sharpness is not None:
            rule = f"be at most batch={self.budget.batch}"
            require(self.sharpness.every <= self.budget.batch, "sam_every", rule, self.sharpness.every)
        require(0 <= self.seed < 1 << 63, "seed", "be at least 0 and less than 2 to the 63", self.seed)

    @classmethod
    def of(cls, content: Any) -> "Recipe":
        """From JSON: composed, or flat as in format 1."""
        if isinstance(content, dict) and isinstance(content.get("network"), str):
            from .settings import from_format_1

            return from_format_1(content)
        return super().of(content)

    def schedule(self, examples: int) -> Schedule:
        """The schedule for a number of training examples per epoch; a batch may span two epochs."""
        budget, method = self.budget, self.method
        total, warmup = (epochs * examples // budget.batch for epochs in (budget.epochs, budget.warmup_epochs))
        if total - warmup < math.ceil(method.first_cycle) + method.cycles - 1:
            longer = f" and first_cycle={method.first_cycle:g}" if method.first_cycle > 1 else ""
            raise ArgumentError(
                f"epochs must give at least one step per cycle after the warm-up, got {total - warmup} steps "
                f"({budget.epochs} epochs of {examples} examples in batches of {budget.batch}, warmup_epochs="
                f"{budget.warmup_epochs}) for cycles={method.cycles}{longer}: use more epochs, fewer cycles or "
                "a smaller batch"
            )
        return self.method.schedule(total, warmup)

    @property
    def identity(self) -> str:
        """Canonical JSON, unique for each recipe."""
        return _canonical(self.written())

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits of a hash of the identity without the seed, for use in names."""
        content = {name: value for name, value in self.written().items() if name != "seed"}
        return hashlib.sha256(_canonical(content).encode()).hexdigest()[:8]

    def differences(self, other: "Recipe") -> list[str]:
        """`setting: own value, other value` for each setting that differs."""
        ours, theirs = self.flat(), other.flat()
        names: dict[str, Any] = {**ours, **theirs}
        return [
            f"{name}: {ours.get(name)!r}, {theirs.get(name)!r}" for name in names if ours.get(name) != theirs.get(name)
        ]


def _canonical(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
