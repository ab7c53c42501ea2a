"""Feed: what a step reads of the data, in buffers that stay where they are."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.augment import AUGMENTATIONS, Scheme
from ..data.images import ImageData, ImageFiles, Images
from ..data.order import Order

_RESIDENT_SHARE = 0.4  # of the memory that is free when the first run is prepared
_EVALUATION_PIXELS = {"cuda": 1 << 20, "cpu": 1 << 19}  # in a batch: few kernels, or little memory
_THREADS = min(os.cpu_count() or 1, 16)
_AHEAD = 2  # batches that lie ready, beside one in the hands of each thread
Item = TypeVar("Item")
Result = TypeVar("Result")
_Batch = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.float32]]


@dataclass(eq=False)
class Placed:
    """A data set on a device, for as many runs as read it. Arrays lie there as uint8, padded for their crops."""

    data: ImageData
    device: torch.device
    mean: Tensor = field(init=False)
    deviation: Tensor = field(init=False)

    def __post_init__(self) -> None:
        rows = self.data.normalisation()
        self.mean, self.deviation = (torch.tensor(row, dtype=torch.float32, device=self.device) for row in rows)

    @property
    def scheme(self) -> Scheme:
        """The augmentation of the training images."""
        return AUGMENTATIONS[self.data.augmentation]

    @cached_property
    def resident(self) -> bool:
        """Whether the training images lie on the device; files, and what is too large for it, are streamed."""
        pixels = self.data.train.pixels
        if not isinstance(pixels, np.ndarray):
            return False
        if self.device.type != "cuda":
            return True
        grown = (1 + 2 * self.scheme.padding / self.data.size) ** 2
        return pixels.nbytes * grown < _RESIDENT_SHARE * torch.cuda.mem_get_info(self.device)[0]

    @cached_property
    def train(self) -> tuple[Tensor, Tensor]:
        """Padded pixels (images, size + 2p, size + 2p, channels) and labels (images,)."""
        padded = self.padded(cast(NDArray[np.uint8], self.data.train.pixels))
        return torch.from_numpy(padded).to(self.device), torch.from_numpy(self.data.train.labels).to(self.device)

    def padded(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Pixels with as many more on each side as their crop needs, zero once they are normalised."""
        if not self.scheme.padding:
            return pixels
        side = self.data.size + 2 * self.scheme.padding
        padded = np.empty((len(pixels), side, side, self.data.channels), np.uint8)
        padded[:] = self.data.normalisation()[0]
        inside = slice(self.scheme.padding, self.scheme.padding + self.data.size)
        padded[:, inside, inside] = pixels
        return padded

    def batches(self, images: Images) -> Iterator[Tensor]:
        """All of them in order, normalised and not augmented, for an evaluation."""
        batch = max(1, _EVALUATION_PIXELS[self.device.type] // self.data.size**2)
        parts = (np.arange(begin, min(begin + batch, len(images))) for begin in range(0, len(images), batch))
        for read in _read_ahead(lambda indices: _pixels(images.pixels, indices, None), parts):
            pixels = torch.from_numpy(read).to(self.device)
            yield Scheme().finish(pixels, pixels, self.mean, self.deviation)


class Feed:
    """The training batches of one run, step after step.

    `prepare` is called on the host before a step; `read` is the part of the step itself, and touches
    nothing but the buffers.
    """

    def __init__(self, placed: Placed, seed: int, batch: int) -> None:
        images = len(placed.data.train)
        self._placed, self._scheme = placed, placed.scheme
        self._order = Order(seed, images, batch, self._scheme.columns)
        self._rows = min(-(-images // batch), 1 << 12) if placed.resident else 1
        device, columns = placed.device, self._scheme.columns
        self._indices = torch.zeros(self._rows, batch, dtype=torch.int64, device=device)
        self._draws = torch.zeros(self._rows, batch, columns, device=device)
        self._first = torch.zeros(1, dtype=torch.int64, device=device)
        self._range = range(0)
        if not placed.resident:
            side, channels = placed.data.size + 2 * self._scheme.padding, placed.data.channels
            self._pixels = torch.zeros(batch, side, side, channels, dtype=torch.uint8, device=device)
            self._every = torch.arange(batch, device=device)
            self._batches: Iterator[_Batch] | None = None

    def prepare(self, step: int) -> None:
        """Have the buffers hold what this step, counted from 0, is to read."""
        if step in self._range:
            return
        if self._placed.resident:
            indices, draws = self._order.rows(step, self._rows)
            self._fill(self._indices, indices)
            self._fill(self._draws, draws)
        else:
            pixels, labels, draws = self._streamed(step)
            self._fill(self._pixels, pixels)
            self._fill(self._indices, labels)
            self._fill(self._draws, draws)
        self._first.fill_(step)
        self._range = range(step, step + self._rows)

    def read(self, completed: Tensor) -> tuple[Tensor, Tensor]:
        """Images (batch, channels, size, size) and labels (batch,) of the step after so many, a tensor of one."""
        row = completed - self._first
        indices, draws = self._indices.index_select(0, row)[0], self._draws.index_select(0, row)[0]
        if self._placed.resident:
            padded, every = self._placed.train
            pixels, labels = self._scheme.crop(padded, indices, draws), every.index_select(0, indices)
        else:
            pixels, labels = self._scheme.crop(self._pixels, self._every, draws), indices
        return self._scheme.finish(pixels, draws, self._placed.mean, self._placed.deviation), labels

    def sample(self, images: int) -> Iterator[Tensor]:
        """So many training images, or all, as the first steps see them, in batches of an evaluation's size."""
        batch, data = self._indices.shape[1], self._placed.data
        steps = -(-min(images, len(data.train)) // batch)
        together = max(1, _EVALUATION_PIXELS[self._placed.device.type] // (batch * data.size**2))
        for first in range(0, steps, together):
            yield torch.cat([self._image_batch(step) for step in range(first, min(first + together, steps))])

    def _image_batch(self, step: int) -> Tensor:
        self.prepare(step)
        return self.read(torch.full_like(self._first, step))[0]

    def _streamed(self, step: int) -> _Batch:
        if self._batches is None or step != self._range.stop:  # at the start, and on resuming
            self._batches = _read_ahead(self._decoded, (self._order.rows(later, 1) for later in count(step)))
        return next(self._batches)

    def _decoded(self, row: tuple[NDArray[np.int64], NDArray[np.float32]]) -> _Batch:
        indices, draws = row
        train = self._placed.data.train
        boxes = draws[0, :, : self._scheme.geometry] if self._scheme.boxes else None
        pixels = _pixels(train.pixels, indices[0], boxes)
        return self._placed.padded(pixels), train.labels[indices], draws

    def _fill(self, buffer: Tensor, values: NDArray[Any]) -> None:
        host = torch.from_numpy(values)
        if buffer.is_cuda:  # steps already queued still read the buffer: copy behind them, without waiting
            host = host.pin_memory()
        buffer.copy_(host.view(buffer.shape), non_blocking=True)


def _read_ahead(read: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Map over the items in order, with threads that are some items ahead of whoever asks."""
    pool = ThreadPoolExecutor(_THREADS)
    try:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(read, item))
            if len(waiting) > _THREADS + _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # when abandoned it may be collected anywhere, even in a thread that is just starting: waiting is a deadlock
        pool.shutdown(wait=False, cancel_futures=True)


def _pixels(
    source: NDArray[np.uint8] | ImageFiles, indices: NDArray[np.int64], boxes: NDArray[np.float32] | None
) -> NDArray[np.uint8]:
    return source[indices] if isinstance(source, np.ndarray) else source.crops(indices, boxes)
