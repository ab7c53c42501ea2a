"""Eager: members evaluated one after the other, each for the undecided rows only, without CUDA graphs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .members import Precision, layout_of
from .plan import Plan, probabilities


class Eager:
    """Calls the networks, newest first, as a plain loop."""

    def __init__(self, networks: Sequence[nn.Module], plan: Plan, precision: Precision, example: Tensor) -> None:
        self._networks, self._plan, self._precision, self._example = networks, plan, precision, example

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions (rows, classes), and the number of members used for each row."""
        threshold, example = self._plan.threshold, self._example
        inputs = inputs.to(example.device, example.dtype).contiguous(memory_format=layout_of(example))
        rows = torch.arange(len(inputs), device=inputs.device)
        used = torch.ones_like(rows)
        total = self._weighted(0, inputs)
        means = total / self._plan.weights[0]
        for k, weight in enumerate(self._plan.totals[1:], 1):
            if threshold is not None:
                undecided = (means[rows].amax(-1) < threshold).nonzero().squeeze(1)
                if not len(undecided):
                    break
                rows, inputs, total = rows[undecided], inputs[undecided], total[undecided]
            total = total + self._weighted(k, inputs)
            means[rows], used[rows] = total / weight, k + 1
        return self._plan.tempered(means), used

    def _weighted(self, k: int, inputs: Tensor) -> Tensor:
        with self._precision():
            return probabilities(self._networks[k](inputs)) * self._plan.weights[k]
