"""Batch: the examples of one step; and Transform, a random change of a training batch on its device."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .value import Value

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Batch(NamedTuple):
    """The examples of one step; images are (batch, height, width, channels), with pixel values from 0 to 255."""

    inputs: "Tensor"
    targets: "Tensor"
    """(batch,) class indices, or (batch, classes) probabilities."""
    fill: "Tensor | None" = None
    """(channels,): the colour of padding, which becomes 0 when images are normalised."""
    inside: "Tensor | None" = None
    """(batch, height, width, 1): whether a pixel belongs to the image; the others are set to the colour of padding
    after all transforms. None: no transform changes colours, so this is not necessary."""
    teacher: "Tensor | None" = None
    """(batch, classes): the logarithm of a teacher's mean probabilities. None: the objective has no teacher."""
    classes: int | None = None
    """The number of classes."""

    def restored(self) -> "Batch":
        """The batch with the colour of padding in all pixels that do not belong to the image."""
        import torch

        if self.inside is None or self.fill is None:
            return self
        return self._replace(inputs=torch.where(self.inside, self.inputs, self.fill))

    def every(self, nth: int) -> "Batch":
        """Every n-th example, for an objective."""
        # cloned, so that a convolution finds dense images
        return self._replace(inputs=self.inputs[::nth].clone(), targets=self.targets[::nth])


@dataclass(frozen=True)
class Transform(Value, ABC):
    """A function of a batch and of random numbers in [0, 1)."""

    columns: ClassVar[int]
    """The number of random numbers per example."""
    recolours: ClassVar[bool] = False
    """Whether it also changes the colour of padding, which is then restored after all transforms."""
    mixes: ClassVar[bool] = False
    """Whether it mixes pairs of neighbouring examples."""
    channels: ClassVar[int | None] = None
    """The number of channels that it requires; None: any."""

    def suits(self, inputs: Mapping[str, int]) -> bool:
        """Whether it can be applied to such examples: images with the required number of channels."""
        return "channels" in inputs and self.channels in (None, inputs["channels"])

    @abstractmethod
    def __call__(self, batch: Batch, draws: "Tensor") -> Batch:
        """The changed batch; `draws` is (batch, columns). It must not wait for the device."""


def between(side: int, begin: "Tensor", length: "int | Tensor") -> "Tensor":
    """(batch, side): whether a position is one of the `length` positions from `begin` (batch, 1) on."""
    import torch

    line = torch.arange(side, device=begin.device)
    return (line >= begin) & (line < begin + length)


@cache
def constant(values: tuple[Any, ...], device: "torch.device") -> "Tensor":
    """A tensor of some values, cached: nothing can be copied from the host while a step is being captured."""
    import torch

    return torch.tensor(values, device=device)
