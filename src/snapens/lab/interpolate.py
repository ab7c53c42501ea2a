"""The error of weights on the line from the last snapshot to each earlier one: the paper's Figure 5."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from .. import metrics
from ..snapshots import Snapshots
from ..weights import tensors
from .step import TrainingStep

GRID = tuple(k / 10 for k in range(11))
"""Shares of the earlier snapshot: 0 is the last snapshot, 1 the earlier one."""
_ESTIMATION_IMAGES = 10_000


@dataclass(frozen=True)
class Line:
    """Test errors, fractions, along the way from the last snapshot to the one of `step`.

    Running statistics of BatchNorm are on the same line as the weights in one, and estimated anew from
    training images in the other, as averages of weights need it.
    """

    step: int
    interpolated: tuple[float, ...]
    estimated: tuple[float, ...]


def lines(step: TrainingStep, snapshots: Snapshots) -> Iterator[Line]:
    """From the last snapshot to each earlier one, the latest first; the network ends as the last snapshot."""
    train = step.placed.data.train
    spread = np.linspace(0, len(train) - 1, min(len(train), _ESTIMATION_IMAGES)).astype(np.int64)
    sample = train.take(spread)  # of all classes, even where the files are sorted by class
    *earlier, last = snapshots.steps
    end = snapshots.load(last)
    for other in reversed(earlier):
        start = snapshots.load(other)
        interpolated, estimated = [], []
        for share in GRID:
            _set(step.network, {name: _between(end[name], start[name], share) for name in end})
            interpolated.append(_error(step))
            step.estimate_statistics(step.placed.batches(sample))
            estimated.append(_error(step))
        yield Line(other, tuple(interpolated), tuple(estimated))
    _set(step.network, end)


def _between(end: Tensor, start: Tensor, share: float) -> Tensor:
    if not end.is_floating_point():  # a count
        return end
    return (1 - share) * end + share * start


def _set(network: nn.Module, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in tensors(network).items():
            tensor.copy_(weights[name])


def _error(step: TrainingStep) -> float:
    test = step.placed.data.test
    outputs = step.log_probabilities(step.placed.batches(test))
    return float(metrics.error(outputs.float().exp().numpy(), test.labels))
