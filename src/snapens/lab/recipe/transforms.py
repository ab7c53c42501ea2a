"""Transforms: random changes of a training batch on its device, from numbers drawn for each example."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ...errors import ArgumentError
from .batch import Batch, Transform, between, constant
from .mixing import CutMix, Mixup
from .trivialaugment import TrivialAugment
from .value import look_up, require

if TYPE_CHECKING:
    from torch import Tensor

# principal components of ImageNet's colours in units of [0, 1], as fb.resnet.torch publishes them
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
_MOST_PIXELS = 1 << 16
_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


@dataclass(frozen=True)
class Mirror(Transform):
    """Flip half of the images from left to right."""

    columns = 1

    def __call__(self, batch: Batch, draws: "Tensor") -> Batch:
        """Flip the images whose number is 0.5 or more."""
        import torch

        kept = draws[:, 0, None, None, None] < 0.5
        inside = batch.inside
        if inside is not None:
            inside = torch.where(kept, inside, inside.flip(2))
        return batch._replace(inputs=torch.where(kept, batch.inputs, batch.inputs.flip(2)), inside=inside)


@dataclass(frozen=True)
class ColourJitter(Transform):
    """Blend brightness, contrast and saturation by up to `strength`, in an order drawn for each image."""

    columns = 4
    recolours = True
    channels = 3
    strength: float = 0.4

    def check(self) -> None:
        """The strength is positive."""
        require(0 < self.strength <= 1, "strength", "be more than 0 and at most 1", self.strength)

    def __call__(self, batch: Batch, draws: "Tensor") -> Batch:
        """The first three numbers are the strengths, the last is the order."""
        import torch

        images = batch.inputs
        orders = constant(_ORDERS, images.device)[(draws[:, 3] * len(_ORDERS)).long()]
        blends = 1 + self.strength * (2 * draws[:, :3] - 1)
        for turn in range(3):
            kind = orders[:, turn, None]
            share = blends.gather(1, kind)[:, :, None, None]
            grey = (images * constant((0.299, 0.587, 0.114), images.device)).sum(3, keepdim=True)
            choice = kind[:, :, None, None]
            target = torch.where(choice == 0, 0.0, torch.where(choice == 1, grey.mean((1, 2), keepdim=True), grey))
            images = share * images + (1 - share) * target
        return batch._replace(inputs=images)


@dataclass(frozen=True)
class Lighting(Transform):
    """Shift colours along the principal components of ImageNet's colours, by normally distributed amounts.

    This is AlexNet's augmentation, and the paper's "RGB intensity scaling" for Tiny ImageNet.
    """

    columns = 3
    recolours = True
    channels = 3
    strength: float = 0.1

    def check(self) -> None:
        """The strength is positive."""
        require(0 < self.strength <= 1, "strength", "be more than 0 and at most 1", self.strength)

    def __call__(self, batch: Batch, draws: "Tensor") -> Batch:
        """One number per component."""
        import torch

        normal = torch.erfinv((2 * draws - 1).clamp(-1 + 2**-23, 1 - 2**-23)) * 2**0.5
        scaled = self.strength * normal * constant(_EIGENVALUES, draws.device)
        shift = 255 * (scaled @ constant(_EIGENVECTORS, draws.device).T)[:, None, None, :]
        return batch._replace(inputs=batch.inputs + shift)


@dataclass(frozen=True)
class Cutout(Transform):
    """Paint a square of `size` pixels, centred anywhere, in the colour of padding (DeVries and Taylor, 2017)."""

    columns = 2
    size: int = 16

    def check(self) -> None:
        """The square has at least one pixel."""
        require(1 <= self.size <= _MOST_PIXELS, "size", f"be between 1 and {_MOST_PIXELS} pixels", self.size)

    def __call__(self, batch: Batch, draws: "Tensor") -> Batch:
        """The numbers are the row and the column of the centre; the square is clipped at the border of the image."""
        import torch

        height, width = batch.inputs.shape[1:3]
        rows, columns = (
            between(side, (draw[:, None] * side).floor() - self.size // 2, self.size)
            for side, draw in ((height, draws[:, 0]), (width, draws[:, 1]))
        )
        covered = (rows[:, :, None] & columns[:, None, :])[..., None]
        assert batch.fill is not None
        inside = None if batch.inside is None else batch.inside & ~covered
        return batch._replace(inputs=torch.where(covered, batch.fill, batch.inputs), inside=inside)


TRANSFORMS: dict[str, type[Transform]] = {
    "cutmix": CutMix,
    "cutout": Cutout,
    "jitter": ColourJitter,
    "lighting": Lighting,
    "mirror": Mirror,
    "mixup": Mixup,
    "trivialaugment": TrivialAugment,
}
Transform.kinds = TRANSFORMS


def named(text: str) -> Transform:
    """The transform for a text of the command line: its name, and its settings unless they are the defaults.

    Examples:
        >>> named("mirror"), named("cutout=8"), named("cutmix=1.0:0.5")
        (Mirror(), Cutout(size=8), CutMix(alpha=1.0, probability=0.5))
    """
    name, equals, value = text.partition("=")
    kind = look_up("transform", name, TRANSFORMS)
    settings = [field.name for field in fields(kind)]
    if not equals:
        return kind()
    require(bool(settings), "transform", f"be {name} without a setting", text)
    try:
        numbers = [float(number) if "." in number else int(number) for number in value.split(":")]
        chosen = dict(zip(settings[: len(numbers)], numbers, strict=True))
    except ValueError as error:
        form = f"{name}={':'.join(setting.upper() for setting in settings)}"
        raise ArgumentError(f"transform must be {name} or {form}, got {text!r}") from error
    return kind(**chosen)
