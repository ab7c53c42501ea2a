"""Pool: the weighted mean of the outputs of several members for one batch, with early exit."""

from typing import Any

import torch
from torch import Tensor

from .batches import each, rows
from .errors import ArgumentError


class Pool:
    """Collects the outputs of members on the CPU.

    With a threshold, an example is decided when the largest probability of its mean so far reaches it.
    """

    def __init__(self, threshold: float | None) -> None:
        self._threshold = threshold
        self._total: Any = None
        self._weight: Any = 0.0  # with a threshold, a column with the weight of each example
        self._undecided: Tensor | None = None

    @property
    def rows(self) -> Tensor | None:
        """The indices of the examples that need another member; None for all examples."""
        return self._undecided

    def undecided(self, inputs: Any) -> Any:
        """The inputs of the examples that need another member, or None if there are none."""
        if self._undecided is None:
            return inputs
        return rows(inputs, self._undecided, len(self._total)) if len(self._undecided) else None

    def add(self, output: Any, weight: float) -> Any:
        """Add the output of a member for the undecided examples. Returns its shape."""
        output = each(lambda tensor: tensor.cpu() * weight, output)
        if self._threshold is not None:
            self._add_rows(output, weight)
        else:
            self._weight += weight
            self._total = output if self._total is None else each(torch.add, self._total, output)
        return each(lambda tensor: tensor.shape, output)

    @property
    def mean(self) -> Any:
        """The mean of the members that were added."""
        return each(lambda tensor: tensor / self._weight, self._total)

    def _add_rows(self, output: Any, weight: float) -> None:
        if not isinstance(output, Tensor) or output.ndim != 2:
            raise ArgumentError(
                "exit_threshold must be None unless the model returns one tensor (examples, classes), "
                f"got {tuple(output.shape) if isinstance(output, Tensor) else 'a mapping'}"
            )
        if self._undecided is None:
            self._total, self._weight = torch.zeros_like(output), output.new_zeros(len(output), 1)
            self._undecided = torch.arange(len(output))
        if len(output) != len(self._undecided):
            raise ArgumentError(
                f"inputs must have one row per example for early exit, got {len(output)} outputs for "
                f"{len(self._undecided)} examples: use tensors, and a loader that repeats its batches"
            )
        self._total[self._undecided] += output
        self._weight[self._undecided] += weight
        mean = self._total[self._undecided] / self._weight[self._undecided]
        self._undecided = self._undecided[mean.max(-1).values < self._threshold]


def logarithm(probabilities: Tensor) -> Tensor:
    """The logarithm; that of 0 is finite."""
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def tempered(mean: Tensor, temperature: float, dim: int = -1) -> Tensor:
    """softmax(log(mean) / temperature) of probabilities along `dim`."""
    return mean if temperature == 1 else (mean.log() / temperature).softmax(dim)
