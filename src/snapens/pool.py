"""Pool: the weighted mean of the outputs of several members for one batch, with early exit."""

from typing import Any

import torch
from torch import Tensor

from .batches import each, rows
from .errors import ArgumentError

ONE_ROW = "inputs in which only tensors with one row per example have as many rows as the batch"


class Pool:
    """Adds up the outputs of members.

    With a threshold, an example is decided when the largest probability of its mean so far reaches it.
    """

    def __init__(self, threshold: float | None) -> None:
        self._threshold = threshold
        self._total: Any = None  # with a threshold, only of the undecided examples
        self._weight = 0.0
        self._means: Any = None  # with a threshold, of all examples
        self._undecided: Tensor | None = None

    @property
    def rows(self) -> Tensor | slice:
        """The places of the examples that need another member."""
        return slice(None) if self._undecided is None else self._undecided

    def undecided(self, inputs: Any) -> Any:
        """The inputs of the examples that need another member, or None if there are none."""
        if self._undecided is None:
            return inputs
        return rows(inputs, self._undecided, len(self._means)) if len(self._undecided) else None

    def add(self, output: Any, weight: float) -> Any:
        """Add the output of a member for the undecided examples. Returns its shape."""
        if self._threshold is not None:
            self._require_rows(output)
        output = each(lambda tensor: tensor * weight, output)
        self._weight += weight
        self._total = output if self._total is None else each(torch.add, self._total, output)
        if self._threshold is not None:
            self._decide(self._threshold)
        return each(lambda tensor: tensor.shape, output)

    @property
    def mean(self) -> Any:
        """The mean of the members that were added."""
        return each(lambda tensor: tensor / self._weight, self._total) if self._threshold is None else self._means

    def _decide(self, threshold: float) -> None:
        """Store the means of the undecided examples, and keep those that are still undecided."""
        mean = self._total / self._weight
        if self._undecided is None:
            self._means, self._undecided = mean, torch.arange(len(mean), device=mean.device)
        else:
            self._means[self._undecided] = mean
        low = (mean.amax(-1) < threshold).nonzero().squeeze(1)
        self._undecided, self._total = self._undecided[low], self._total[low]

    def _require_rows(self, output: Any) -> None:
        if not isinstance(output, Tensor) or output.ndim != 2:
            raise ArgumentError(
                "exit_threshold must be None unless the model returns one tensor (examples, classes), "
                f"got {tuple(output.shape) if isinstance(output, Tensor) else 'a mapping'}"
            )
        if self._undecided is not None and output.shape != self._total.shape:
            raise ArgumentError(
                "inputs must have one row per example for early exit, got outputs of shape "
                f"{tuple(output.shape)} instead of {tuple(self._total.shape)}: use a loader that repeats its batches, "
                f"and {ONE_ROW}, or exit_threshold=None"
            )


def logarithm(probabilities: Tensor) -> Tensor:
    """The logarithm; that of 0 is finite."""
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def tempered(mean: Tensor, temperature: float, dim: int = -1) -> Tensor:
    """softmax(log(mean) / temperature) of probabilities along `dim`."""
    return mean if temperature == 1 else (mean.log() / temperature).softmax(dim)
