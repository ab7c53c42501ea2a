"""The order of the training examples and the random numbers of each: a pure function of (seed, epoch)."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int64]


class Order:
    """An endless stream of epochs, each a permutation of the examples, cut into full batches.

    A batch may span two epochs, so that every example is used equally often and all steps have the same shape. The
    order has no state, so nothing has to be saved.

    Examples:
        >>> order = Order(seed=0, images=5, batch=2, columns=1)
        >>> indices, draws = order.rows(0, 5)
        >>> indices.shape, draws.shape
        ((5, 2), (5, 2, 1))
        >>> sorted(indices.ravel()[:5].tolist()), sorted(indices.ravel()[5:].tolist())
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    """

    def __init__(self, seed: int, images: int, batch: int, columns: int) -> None:
        self.seed, self.images, self.batch, self.columns = seed, images, batch, columns
        self._epoch = lru_cache(2)(self._drawn)  # a batch that spans two epochs needs both

    def rows(self, first_step: int, steps: int) -> tuple[Array, NDArray[np.float32]]:
        """Indices (steps, batch) and draws in [0, 1) (steps, batch, columns), for steps counted from 0."""
        begin, end = first_step * self.batch, (first_step + steps) * self.batch
        parts = []
        for epoch in range(begin // self.images, -(-end // self.images)):
            start = epoch * self.images
            place = slice(max(begin - start, 0), min(end - start, self.images))
            permutation, draws = self._epoch(epoch)
            parts.append((permutation[place], draws[place]))
        indices, draws = (np.concatenate(column) for column in zip(*parts, strict=True))
        return indices.reshape(steps, self.batch), draws.reshape(steps, self.batch, self.columns)

    def _drawn(self, epoch: int) -> tuple[Array, NDArray[np.float32]]:
        # the raw output of a counter-based generator is the same in every version of NumPy; each use has a counter
        keys = np.random.Philox(key=[self.seed, epoch], counter=[0, 0, 0, 0]).random_raw(self.images)
        words = np.random.Philox(key=[self.seed, epoch], counter=[0, 0, 0, 1]).random_raw(self.images * self.columns)
        draws = (words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        return np.argsort(keys, kind="stable"), draws.reshape(self.images, self.columns)
