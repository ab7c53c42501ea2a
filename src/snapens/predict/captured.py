"""Captured: the members as CUDA graphs, one for each batch size and each first member."""

import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import Tensor, nn

from .members import Precision, layout_of
from .plan import Plan, probabilities

_WARM_UP_CALLS = 2
_PARALLEL_ROWS = 256  # on an H200 a gain of 5 % for a Wide-ResNet-32; more rows gain as little and need more memory


class NotCapturableError(Exception):
    """A network waits for the device, for example to branch on a value."""


class Captured:
    """Predicts by replaying graphs that were captured once.

    Graph (k, size) evaluates the members from number k on, for `size` rows for which k members were evaluated before.
    It is one of two kinds:

    - It evaluates all remaining members and finishes: for few rows (`together[0]` at first, `together[1]` after the
      first member), for the last member, and without a threshold.
    - Otherwise it evaluates only member k, and moves the undecided rows to the front of the inputs of member k + 1. The
      host reads how many there are and chooses the next graph.

    Members of one graph run at the same time, each on its own stream, unless the batch is large.

    Graphs share the networks, one memory pool and the buffers. A graph keeps nothing in the pool for another, so they
    can be replayed in any order, but not at the same time: call it from one thread and stream at a time.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        plan: Plan,
        precision: Precision,
        example: Tensor,
        sizes: Sequence[int],
        together: tuple[int, int],
    ) -> None:
        self._networks, self._plan, self._precision = networks, plan, precision
        self._sizes, self._together, self._device = sizes, together, example.device
        self._sides = [_stream(self._device, number) for number in range(1, len(networks))]
        self._pool = torch.cuda.graph_pool_handle()
        self._allocate(example)
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        stream = _stream(self._device, 0)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream), _chosen_by_timing():
            self._require_capturable()
            first_members = range(1 if plan.threshold is None else len(networks))
            for size in sorted(sizes, reverse=True):  # the largest first: smaller ones fit into its memory
                for k in first_members:
                    compute = self._finish if self._finishes(k, size) else self._advance
                    self._graphs[k, size] = self._capture(partial(compute, k, size), stream)
        torch.cuda.current_stream(self._device).wait_stream(stream)

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions (rows, classes), and the number of members used for each row; at most `sizes[-1]` rows."""
        rows = left = len(inputs)
        self._inputs[0][:rows].copy_(inputs)
        if not self._finishes(0, self._size(rows)):
            self._count.fill_(rows)
        for k in range(len(self._networks)):
            size = self._size(left)
            self._graphs[k, size].replay()
            if self._finishes(k, size):
                break
            left = int(self._count)  # waits for the device
            if not left:
                break
        return self._predictions[:rows].clone(), self._used[:rows].clone()

    def _allocate(self, example: Tensor) -> None:
        """Allocate what graphs read and write; the last row of a buffer is for rows that are not used."""
        rows, device = self._sizes[-1] + 1, self._device
        with self._precision():
            classes = probabilities(self._networks[0], example[:1]).shape[1]
        like = example[:1].expand(rows, *example.shape[1:])
        self._inputs = [like.clone(memory_format=layout_of(example)) for _ in range(2)]  # of even and odd members
        self._positions = torch.arange(rows, device=device)
        self._rows = [self._positions.clone() for _ in range(2)]  # where the rows of `_inputs` were at first
        self._count = torch.zeros(1, dtype=torch.int64, device=device)
        self._found = torch.zeros(len(self._networks), rows, classes, device=device)
        self._totals = torch.zeros(rows, classes, device=device)
        self._predictions = torch.zeros(rows, classes, device=device)
        self._used = torch.zeros(rows, dtype=torch.int64, device=device)
        self._weights = torch.tensor(self._plan.totals, device=device).view(-1, 1, 1)

    def _size(self, rows: int) -> int:
        """The smallest captured size for a number of rows."""
        return self._sizes[bisect_left(self._sizes, rows)]

    def _finishes(self, k: int, size: int) -> bool:
        return self._plan.threshold is None or size <= self._together[k > 0] or k == len(self._networks) - 1

    def _require_capturable(self) -> None:
        """Check that no network waits for the device, which would make a capture fail."""
        size, before = self._sizes[0], torch.cuda.get_sync_debug_mode()
        self._evaluate(0, size)  # compile first
        with warnings.catch_warnings(action="ignore"):  # the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
            try:
                self._evaluate(0, size)
            except RuntimeError as error:
                raise NotCapturableError(str(error)) from error
            finally:
                torch.cuda.set_sync_debug_mode(before)

    def _capture(self, compute: Callable[[], None], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        for _ in range(_WARM_UP_CALLS):  # compile, and choose the algorithms of the convolutions
            compute()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            compute()
        return graph

    def _advance(self, k: int, size: int) -> None:
        """Evaluate member k, and keep the undecided rows."""
        rows, inputs = self._rows_before(k, size), self._inputs[k % 2][:size]
        total = self._weighted(k, inputs)
        if k:
            total = total + self._totals.index_select(0, rows)
        mean = total / self._plan.totals[k]
        self._totals.index_copy_(0, rows, total)
        self._predictions.index_copy_(0, rows, self._plan.tempered(mean))
        self._used.index_fill_(0, rows, k + 1)
        assert self._plan.threshold is not None  # otherwise graph 0 finishes
        undecided = (mean.amax(-1) < self._plan.threshold) & (self._positions[:size] < self._count)
        places = (undecided.cumsum(0) - 1).masked_fill(~undecided, size)
        self._count.copy_(undecided.sum(0, keepdim=True))
        following = self._rows[(k + 1) % 2]
        following.fill_(self._sizes[-1])
        following.index_copy_(0, places, rows)
        self._inputs[(k + 1) % 2].index_copy_(0, places, inputs)

    def _finish(self, k: int, size: int) -> None:
        """Evaluate member k and all after it, and find the member at which each row stops."""
        self._evaluate(k, size)
        rows, threshold = self._rows_before(k, size), self._plan.threshold
        totals = self._found[k:, :size].cumsum(0)
        if k:
            totals = totals + self._totals.index_select(0, rows)
        means = totals / self._weights[k:]
        if threshold is None or len(means) == 1:
            mean, more = means[-1], torch.full_like(rows, len(means) - 1)
        else:
            undecided = means[:-1].amax(-1) < threshold
            more = undecided.cumprod(0).sum(0)  # members after member k
            mean = means.gather(0, more.view(1, -1, 1).expand(1, -1, means.shape[-1]))[0]
        self._predictions.index_copy_(0, rows, self._plan.tempered(mean))
        self._used.index_copy_(0, rows, more + (k + 1))

    def _evaluate(self, k: int, size: int) -> None:
        """Write the weighted probabilities of member k and all after it to `_found`."""
        inputs, main = self._inputs[k % 2][:size], torch.cuda.current_stream(self._device)
        sides = self._sides[: len(self._networks) - 1 - k] if size <= _PARALLEL_ROWS else []
        for member, side in enumerate(sides, k + 1):  # before member k, so that they do not wait for it
            side.wait_stream(main)
            with torch.cuda.stream(side):
                self._weighted(member, inputs)
        for member in range(k, len(self._networks) if not sides else k + 1):
            self._weighted(member, inputs)
        for side in sides:
            main.wait_stream(side)

    def _rows_before(self, k: int, size: int) -> Tensor:
        """Where `size` rows of the inputs of member k were in the inputs of the call."""
        return (self._rows[k % 2] if k else self._positions)[:size]

    def _weighted(self, k: int, inputs: Tensor) -> Tensor:
        """Write the weighted probabilities of member k to `_found`."""
        with self._precision():
            found = probabilities(self._networks[k], inputs)
        return torch.mul(found, self._plan.weights[k], out=self._found[k, : len(inputs)])


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """A stream to capture on, the same for all predictors: cuBLAS keeps a workspace for each stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _chosen_by_timing() -> Iterator[None]:
    """Let cuDNN choose the algorithm of each convolution by timing; the precision stays as the user has set it."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
