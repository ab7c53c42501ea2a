"""Objectives: the loss that a step minimises."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...combination import Combination
from ...errors import ArgumentError
from .value import Value, require

if TYPE_CHECKING:
    from torch import Tensor

    from .batch import Batch


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


@dataclass(frozen=True)
class Teacher(Value):
    """A combination of the members of one run. Its folder is not part of a recipe: it may be moved."""

    run: str
    """The identity of the run, as in its manifest."""
    steps: tuple[int, ...]
    """The steps of the members."""
    weights: tuple[float, ...] = ()
    """One per member; empty for equal weights."""
    temperature: float = 1.0

    @classmethod
    def combining(cls, combination: Combination) -> "Teacher":
        """The teacher with the members of a combination; an exit threshold is ignored."""
        runs = {run for run, _ in combination.members}
        if len(runs) != 1:
            raise ArgumentError(
                f"combination must list members of one run for a teacher, got those of {len(runs)} runs: fit another"
            )
        steps = tuple(step for _, step in combination.members)
        return cls(runs.pop(), steps, combination.weights, combination.temperature)

    def check(self) -> None:
        """It is a valid combination."""
        _ = self.combination

    @property
    def combination(self) -> Combination:
        """How the members are combined."""
        return Combination(tuple((self.run, step) for step in self.steps), self.weights, self.temperature)


@dataclass(frozen=True)
class Distillation(Objective):
    """Cross-entropy with the labels, mixed with the divergence from a teacher's prediction (Hinton et al., 2015).

    The teacher predicts for the same transformed inputs as the network (Beyer et al., 2022). Both predictions are
    softened by a temperature T, and the Kullback-Leibler divergence is multiplied by T², so that its gradients do not
    depend much on T.
    """

    teacher: Teacher
    share: float = 0.9
    """The share of the divergence in the loss; the rest is the cross-entropy with the labels."""
    temperature: float = 2.0

    def check(self) -> None:
        """The share is more than 0 and at most 1; the temperature is positive."""
        require(0 < self.share <= 1, "share", "be more than 0 and at most 1", self.share)
        rule = "be a finite number greater than 0"
        require(0 < self.temperature < float("inf"), "temperature", rule, self.temperature)

    def __call__(self, outputs: "Tensor", batch: "Batch") -> "Tensor":
        """The loss of logits (batch, classes), where `batch.teacher` has the teacher's prediction."""
        from torch.nn.functional import cross_entropy, kl_div, log_softmax

        assert batch.teacher is not None
        student = log_softmax(outputs.float() / self.temperature, 1)
        teacher = log_softmax(batch.teacher / (self.teacher.temperature * self.temperature), 1)
        divergence = kl_div(student, teacher, reduction="batchmean", log_target=True) * self.temperature**2
        return (1 - self.share) * cross_entropy(outputs, batch.targets) + self.share * divergence


OBJECTIVES: dict[str, type[Objective]] = {"cross_entropy": CrossEntropy, "distillation": Distillation}
Objective.kinds = OBJECTIVES
