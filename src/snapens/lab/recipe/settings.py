"""Settings: a recipe as flat settings, which are the flags of the command line; and the flat recipes of format 1."""

from dataclasses import dataclass
from typing import Any, Literal

from ...errors import ArgumentError
from ...storage.typed import UnknownFieldError, decoded
from .averaging import EMA
from .methods import METHODS
from .objectives import CrossEntropy
from .optimizers import OPTIMIZERS
from .recipe import Budget, Dataset, Network, Recipe
from .sharpness import SAM
from .transforms import named
from .value import look_up


@dataclass(frozen=True)
class Settings:
    """A network, a data set, a method and a budget.

    Examples:
        >>> Settings(network="resnet110", dataset="cifar100", lr=0.2).recipe().optimizer
        SGD(lr=0.2, weight_decay=0.0001, decays='all', momentum=0.9)
    """

    network: str = "resnet110"
    """resnet110, wrn32, wrn28x10, wrn28x8, wrn16x8, densenet40, densenet100, resnet50, small, mlp;
    torchvision:NAME, timm:NAME, or your own network as module:callable."""
    dataset: str = "cifar100"
    """cifar10, cifar100, svhn, svhn-extra, tinyimagenet, imagenet, glyphs, or your own data as folder or arrays."""
    method: Literal["single", "snapshot", "singlecycle", "grow"] = "snapshot"
    """single: the rate drops at 50 % and 75 %, and the snapshots taken on the way form NoCycle;
    snapshot: cosine cycles; singlecycle: each cycle from fresh weights; grow: each cycle as given by pattern."""
    epochs: int = 200
    """B: the number of passes over the training examples."""
    cycles: int = 5
    """M: the number of snapshots."""
    first_cycle: float = 1.0
    """The length of the first cycle as a multiple of the others."""
    later_peak: float = 1.0
    """The peak rate of every cycle after the first, as a multiple of the first peak."""
    restart_noise: float = 0.0
    """Noise that is added to the weights when a cycle continues from the previous one, relative to their size."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """sgd: with Nesterov momentum, as in the paper; adamw: Adam with decoupled weight decay."""
    lr: float | None = None
    """The peak learning rate; by default 0.1 for sgd and 0.001 for adamw."""
    batch: int = 64
    """Examples per step."""
    seed: int = 0
    """The seed of weights, order, transforms and dropout."""
    dropout: float = 0.0
    """The dropout probability."""
    stem_stride: int = 1
    """The stride of the first layer; the paper uses 2 for Tiny ImageNet."""
    pretrained: bool = False
    """Start from the pretrained weights of torchvision:NAME or timm:NAME; only the last layer is new."""
    weight_decay: float | None = None
    """The weight decay; by default 0.0001 for sgd and 0.01 for adamw."""
    decays: Literal["all", "weights"] = "all"
    """The parameters with weight decay: all, or weights, which excludes norms and biases."""
    momentum: float | None = None
    """Nesterov momentum of sgd; by default 0.9."""
    label_smoothing: float = 0.0
    """The share of each target that is spread evenly over all classes."""
    padding: int | None = None
    """Pixels of padding around an image before random cropping; the default depends on the data set."""
    transforms: tuple[str, ...] | None = None
    """Transforms after cropping: mirror, jitter, lighting, trivialaugment, cutout=16, mixup=0.2, cutmix=1.0:0.5.
    The default depends on the data set."""
    ema: float | None = None
    """Store an exponential moving average of the weights with this decay, such as 0.999."""
    ema_at_restart: Literal["carried", "reset"] = "carried"
    """carried: the average continues over a restart; reset: it starts again from the weights at the restart."""
    sam: float | None = None
    """Use sharpness-aware minimisation (SAM) with this radius, such as 0.1."""
    sam_every: int = SAM.every
    """With sam, compute the direction of the move from every n-th example. With 4, a step takes 1.2 times as long."""
    sam_moves: Literal["all", "norms"] = "all"
    """With sam, the parameters that are moved: all, or only those of normalisation layers, with a radius like 0.5."""
    warmup_epochs: int = 0
    """Warm-up epochs before the first cycle, included in epochs."""
    pattern: tuple[Literal["warm", "fresh"], ...] = ()
    """For grow: the start of each cycle after the first, such as warm warm fresh; repeated as needed."""
    held_out: int | None = None
    """The number of training examples to hold out, so that a combination can be chosen on them.
    By default, the commands hold out a tenth of your own data, and no examples of other data sets."""
    held_out_seed: int = 0
    """The seed that selects the held-out examples."""

    def recipe(self) -> Recipe:
        """The recipe with these settings."""
        method = look_up("method", self.method, METHODS)
        optimizer = look_up("optimizer", self.optimizer, OPTIMIZERS)
        if bool(self.pattern) != (self.method == "grow"):
            raise ArgumentError(f"pattern must be given for the method grow, and for no other, got {self.pattern!r}")
        if self.momentum is not None and self.optimizer != "sgd":
            raise ArgumentError(f"momentum must be given for sgd only, got {self.momentum} for {self.optimizer}")
        if self.ema is None and self.ema_at_restart != "carried":
            raise ArgumentError(f"ema_at_restart must be given with ema only, got {self.ema_at_restart!r}: add ema")
        if self.sam is None and self.sam_every != SAM.every:
            raise ArgumentError(f"sam_every must be given with sam only, got {self.sam_every}: add sam")
        if self.sam is None and self.sam_moves != SAM.moves:
            raise ArgumentError(f"sam_moves must be given with sam only, got {self.sam_moves!r}: add sam")
        given = {"lr": self.lr, "weight_decay": self.weight_decay, "momentum": self.momentum}
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        pattern: dict[str, Any] = {"pattern": self.pattern} if self.pattern else {}
        shape = {"first_cycle": self.first_cycle, "later_peak": self.later_peak}
        return Recipe(
            Network(self.network, self.dropout, self.stem_stride, self.pretrained),
            Dataset(self.dataset, self.held_out or 0, self.held_out_seed, self.padding),
            method(self.cycles, restart_noise=self.restart_noise, **shape, **pattern),
            Budget(self.epochs, self.batch, self.warmup_epochs),
            optimizer(decays=self.decays, **settings),
            CrossEntropy(self.label_smoothing),
            None if self.transforms is None else tuple(map(named, self.transforms)),
            None if self.ema is None else EMA(self.ema, at_restart=self.ema_at_restart),
            self.seed,
            sharpness=None if self.sam is None else SAM(self.sam, self.sam_every, self.sam_moves),
        )


_FORMAT_1 = {
    *("network", "dataset", "method", "epochs", "cycles", "lr", "batch", "seed", "dropout", "stem_stride"),
    *("weight_decay", "momentum", "warmup_epochs", "pattern", "held_out", "held_out_seed"),
}


def from_format_1(content: dict[str, Any]) -> Recipe:
    """The recipe from the flat JSON object of format 1, whose defaults are those of `Settings`."""
    if unknown := content.keys() - _FORMAT_1:
        raise UnknownFieldError(f"unknown field {min(unknown)!r} of recipe")
    settings: Settings = decoded(Settings, content, "recipe")
    return settings.recipe()
