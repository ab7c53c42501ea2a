"""Feed: the training data that a step reads, in buffers whose addresses do not change."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ArgumentError
from ..data.ahead import read_ahead
from ..data.order import Order
from ..data.protocol import Data, Placed
from ..recipe.batch import Batch, Transform
from ..recipe.recipe import Recipe

_MOST_ROWS = 1 << 12
_Read = tuple[NDArray[Any], NDArray[np.int64], NDArray[np.float32]]


def transforms_of(recipe: Recipe, data: Data) -> tuple[Transform, ...]:
    """The transforms of a recipe, or the default of the data set."""
    for transform in recipe.transforms or ():
        if not transform.suits(data.inputs):
            described = ", ".join(f"{name}={value}" for name, value in data.inputs.items())
            raise ArgumentError(f"transforms must suit the data ({described}), got {transform.kind}: remove it")
    return data.transforms if recipe.transforms is None else recipe.transforms


class Feed:
    """The training batches of one run, one per step.

    `prepare` is called on the host before a step; `read` is part of the step itself and uses only
    the buffers. `part` are the rows of each batch that are read; by default all.
    """

    def __init__(
        self, placed: Placed, transforms: Sequence[Transform], seed: int, batch: int, part: slice | None = None
    ) -> None:
        examples = len(placed.data.train)
        self._placed, self._transforms = placed, tuple(transforms)
        self._recolours = any(transform.recolours for transform in self._transforms)
        columns = placed.crop.columns + sum(transform.columns for transform in self._transforms)
        self._order, self._part = Order(seed, examples, batch, columns), part or slice(batch)
        self._steps = min(-(-examples // batch), _MOST_ROWS) if placed.resident else 1
        rows = self._part.stop - (self._part.start or 0)
        if rows < batch and rows % 2 and any(transform.mixes for transform in self._transforms):
            raise ArgumentError(
                "batch must have an even number of examples per process, because transforms mix pairs of them, got "
                f"{rows}: use another --batch or another number of processes"
            )
        device = placed.device
        self._indices = torch.zeros(self._steps, rows, dtype=torch.int64, device=device)
        self._draws = torch.zeros(self._steps, rows, columns, device=device)
        self._first = torch.zeros(1, dtype=torch.int64, device=device)
        self._range = range(0)
        if placed.resident:
            self._rows, self._labels = placed.rows, placed.labels
        else:
            self._rows, self._every = placed.buffer(rows), torch.arange(rows, device=device)
            self._batches: Iterator[_Read] | None = None

    def prepare(self, step: int) -> None:
        """Fill the buffers with the data of a step, counted from 0."""
        if step in self._range:
            return
        if self._placed.resident:
            indices, draws = self._rows_of(step, self._steps)
        else:
            rows, indices, draws = self._streamed(step)  # labels instead of indices
            self._fill(self._rows, rows)
        self._fill(self._indices, indices)
        self._fill(self._draws, draws)
        self._first.fill_(step)
        self._range = range(step, step + self._steps)

    def read(self, completed: Tensor) -> Batch:
        """The transformed batch of the step after `completed` steps; `completed` is a tensor with one element."""
        row = completed - self._first
        indices, draws = self._indices.index_select(0, row)[0], self._draws.index_select(0, row)[0]
        if self._placed.resident:
            targets = self._labels.index_select(0, indices)
        else:
            indices, targets = self._every, indices
        batch = self._placed.take(self._rows, indices, targets, draws, self._recolours)
        column = self._placed.crop.columns
        for transform in self._transforms:
            batch = transform(batch, draws[:, column : column + transform.columns])
            column += transform.columns
        return batch._replace(inputs=self._placed.finish(batch.restored().inputs))

    def sample(self, examples: int) -> Iterator[Tensor]:
        """Inputs of `examples` training examples, or of all, as in the first steps, in batches for an evaluation."""
        batch = self._indices.shape[1]
        steps = -(-min(examples, len(self._placed.data.train)) // batch)
        together = max(1, self._placed.evaluation_batch // batch)
        for first in range(0, steps, together):
            yield torch.cat([self._inputs(step) for step in range(first, min(first + together, steps))])

    def _inputs(self, step: int) -> Tensor:
        self.prepare(step)
        return self.read(torch.full_like(self._first, step)).inputs

    def _streamed(self, step: int) -> _Read:
        if self._batches is None or step != self._range.stop:  # at the start, and after resuming
            self._batches = read_ahead(self._host_batch, (self._rows_of(later, 1) for later in count(step)))
        return next(self._batches)

    def _rows_of(self, step: int, steps: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        indices, draws = self._order.rows(step, steps)
        return indices[:, self._part], draws[:, self._part]

    def _host_batch(self, row: tuple[NDArray[np.int64], NDArray[np.float32]]) -> _Read:
        indices, draws = row
        return self._placed.read(indices[0], draws[0]), self._placed.data.train.labels[indices], draws

    def _fill(self, buffer: Tensor, values: NDArray[Any]) -> None:
        host = torch.from_numpy(values)
        if buffer.is_cuda:  # queued steps still read the buffer: queue the copy after them, without waiting
            host = host.pin_memory()
        buffer.copy_(host.view(buffer.shape), non_blocking=True)
