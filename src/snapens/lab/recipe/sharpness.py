"""Sharpness: how a step avoids minima with steep surroundings."""

from dataclasses import dataclass
from typing import Literal

from .value import Value, require, require_at_least


@dataclass(frozen=True)
class SAM(Value):
    """Sharpness-aware minimisation (Foret et al., 2021).

    Each step computes its gradient where the loss is higher: at weights that were moved by a small distance in the
    direction of the gradient. The optimizer then applies this gradient to the original weights. A part of the batch is
    enough to find the direction, so a step need not take twice as long.
    """

    radius: float = 0.1
    """The length of the move: the norm over all parameters that move."""
    every: int = 4
    """The direction is computed from every n-th example of a batch; 1: from all examples, as in the original method."""
    moves: Literal["all", "norms"] = "all"
    """all: every parameter moves. With bfloat16, as on a GPU, weights that would move by less than their rounding error
    stay or move further, so a small move differs from the exact one. norms: only the parameters of normalisation layers
    move, which are not rounded (SAM-ON; Müller et al., 2023)."""

    def check(self) -> None:
        """The radius is positive."""
        require(0 < self.radius < float("inf"), "sam", "have a finite radius greater than 0", self.radius)
        require_at_least(1, sam_every=self.every)
