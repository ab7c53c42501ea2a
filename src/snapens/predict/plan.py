"""Plan: how the scores of members become one prediction, with the members in the order of their evaluation."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from ..batches import class_scores
from ..combination import Combination
from ..pool import tempered


@dataclass(frozen=True)
class Plan:
    """The weight of each member (newest first), the temperature, and the threshold of early exit."""

    weights: tuple[float, ...]
    temperature: float
    threshold: float | None

    @classmethod
    def of(cls, combination: Combination) -> "Plan":
        """The plan of a combination, whose members are listed oldest first."""
        return cls(combination.shares[::-1], combination.temperature, combination.exit_threshold)

    @property
    def totals(self) -> tuple[float, ...]:
        """The sum of the first 1, 2, … weights."""
        return tuple(accumulate(self.weights))

    def tempered(self, mean: Tensor) -> Tensor:
        """The prediction (batch, classes) for a mean of probabilities."""
        return tempered(mean, self.temperature)


def probabilities(member: nn.Module, inputs: Tensor) -> Tensor:
    """The softmax of the scores of a member, (batch, classes) in float32; the member gets a copy of the inputs."""
    return class_scores(member(inputs.clone())).to(torch.float32).softmax(-1)
