"""Reading ahead: a map whose threads are a few items ahead of the reader."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_THREADS = min(os.cpu_count() or 1, 16)
_AHEAD = 2  # items that are ready, beside the one that each thread works on
Item = TypeVar("Item")
Result = TypeVar("Result")


def read_ahead(read: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Map over the items in order, on threads."""
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
        # an abandoned iterator may be collected anywhere, even in a thread that is just starting: do not wait
        pool.shutdown(wait=False, cancel_futures=True)
