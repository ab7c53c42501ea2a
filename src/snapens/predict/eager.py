"""Eager: members evaluated one after the other, each for the undecided rows only, without CUDA graphs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..pool import Pool
from .members import Precision, layout_of
from .plan import Plan, probabilities


class Eager:
    """Calls the networks, newest first, as a plain loop."""

    def __init__(self, networks: Sequence[nn.Module], plan: Plan, precision: Precision, example: Tensor) -> None:
        self._networks, self._plan, self._precision, self._example = networks, plan, precision, example

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions (rows, classes), and the number of members used for each row."""
        example, pool = self._example, Pool(self._plan.threshold)
        inputs = inputs.to(example.device, example.dtype).contiguous(memory_format=layout_of(example))
        used = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
        for k, (network, weight) in enumerate(zip(self._networks, self._plan.weights, strict=True), 1):
            if (undecided := pool.undecided(inputs)) is None:
                break
            used[pool.rows] = k
            with self._precision():
                found = probabilities(network, undecided)
            pool.add(found, weight)
        return self._plan.tempered(pool.mean), used
