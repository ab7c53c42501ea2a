"""Objectives: the loss that a step minimises."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .value import Value, require

if TYPE_CHECKING:
    from torch import Tensor

    from .transforms import Batch


@dataclass(frozen=True)
class Objective(Value, ABC):
    """A function of the network's outputs for a batch."""

    @abstractmethod
    def __call__(self, outputs: "Tensor", batch: "Batch") -> "Tensor":
        """The scalar loss of the network's outputs (batch, classes)."""


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """The mean cross-entropy."""

    label_smoothing: float = 0.0
    """The share of each target that is spread evenly over all classes."""

    def check(self) -> None:
        """The share is at least 0 and less than 1."""
        rule = "be at least 0 and less than 1"
        require(0 <= self.label_smoothing < 1, "label_smoothing", rule, self.label_smoothing)

    def __call__(self, outputs: "Tensor", batch: "Batch") -> "Tensor":
        """The loss of logits (batch, classes)."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, batch.targets, label_smoothing=self.label_smoothing)


OBJECTIVES: dict[str, type[Objective]] = {"cross_entropy": CrossEntropy}
Objective.kinds = OBJECTIVES
