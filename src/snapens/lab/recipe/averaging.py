"""Averaging: averages of the weights that are stored instead of the trained weights."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .value import Value, require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Averaging(Value, ABC):
    """A running average of the weights and buffers, updated after every step."""

    at_restart: Literal["carried", "reset"] = field(default="carried", kw_only=True)
    """Whether the average is carried over into the next cycle, or starts again from the weights at its beginning."""

    @abstractmethod
    def update(self, average: "list[Tensor]", live: "list[Tensor]") -> None:
        """Move the averages towards the live floating-point tensors, in place."""


@dataclass(frozen=True)
class EMA(Averaging):
    """The exponential moving average: each step adds the live weights with the factor 1 - `decay`."""

    decay: float = 0.999

    def check(self) -> None:
        """The decay is between 0 and 1."""
        require(0 < self.decay < 1, "ema", "have a decay of more than 0 and less than 1", self.decay)

    def update(self, average: "list[Tensor]", live: "list[Tensor]") -> None:
        """Update all tensors with one kernel."""
        import torch

        torch._foreach_lerp_(average, live, 1 - self.decay)


AVERAGINGS: dict[str, type[Averaging]] = {"ema": EMA}
Averaging.kinds = AVERAGINGS
