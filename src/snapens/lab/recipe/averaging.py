"""Averaging: weights that are kept in place of the trained ones."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .value import Value, require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Averaging(Value, ABC):
    """A running average of the weights and buffers, updated after every step."""

    @abstractmethod
    def update(self, average: "list[Tensor]", live: "list[Tensor]") -> None:
        """Move the averages towards the live floating-point tensors, in place."""


@dataclass(frozen=True)
class EMA(Averaging):
    """The exponential moving average: a step adds 1 - `decay` of the live weights."""

    decay: float = 0.999

    def check(self) -> None:
        """The decay is a share."""
        require(0 < self.decay < 1, "ema", "have a decay of more than 0 and less than 1", self.decay)

    def update(self, average: "list[Tensor]", live: "list[Tensor]") -> None:
        """All tensors by one kernel."""
        import torch

        torch._foreach_lerp_(average, live, 1 - self.decay)


AVERAGINGS: dict[str, type[Averaging]] = {"ema": EMA}
Averaging.kinds = AVERAGINGS
