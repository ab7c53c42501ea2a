"""World: the processes that train a run together, each with its part of every batch; torchrun starts them."""

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import ArgumentError, MismatchError, ProcessError, SnapensError
from ..recipe.recipe import Recipe

T = TypeVar("T")

_TIMEOUT = timedelta(hours=2)  # the other ranks wait while rank 0 evaluates or downloads


@dataclass(frozen=True)
class World:
    """This process among the processes that train together. By default it is alone, without communication.

    All ranks must call the same methods in the same order.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    """The rank among the processes of this machine."""
    group: "dist.ProcessGroup | None" = None

    @property
    def is_first(self) -> bool:
        """Whether this process evaluates, writes and prints."""
        return self.rank == 0

    def part(self, batch: int) -> slice:
        """The rows of a batch that this rank trains on."""
        if batch % self.count:
            raise ArgumentError(
                f"batch must be divisible by the number of processes, {self.count}, got {batch}: "
                "use another --batch or another number of processes"
            )
        rows = batch // self.count
        return slice(self.rank * rows, (self.rank + 1) * rows)

    def check(self, recipe: Recipe) -> None:
        """Require settings with which several processes compute the same steps as one."""
        if recipe.batchnorm_parts not in (1, self.count):
            raise ArgumentError(
                f"batchnorm_parts must be the number of processes, {self.count}, or 1, got {recipe.batchnorm_parts}: "
                f"use {recipe.batchnorm_parts} processes"
            )
        if recipe.sharpness is None or self.count == 1:
            return
        rows, every = recipe.budget.batch // self.count, recipe.sharpness.every
        if rows % every:
            raise ArgumentError(
                f"sam_every must divide batch / processes = {rows}, got {every}: "
                "use another --sam-every, --batch or number of processes"
            )

    def agree(self, action: Callable[[], T]) -> T:
        """Call `action` on all ranks; if it fails on a rank, raise an error on all."""
        return cast(T, self._agreed(action, share=False))

    def first(self, action: Callable[[], T]) -> T:
        """Call `action` on rank 0 only; all ranks get its result or an error."""
        return cast(T, self._agreed(action if self.is_first else lambda: None, share=True))

    def _agreed(self, action: Callable[[], Any], share: bool) -> Any:
        if self.group is None:
            return action()
        value: Any = None
        failure: Exception | None = None
        try:
            value = action()
        except ProcessError:
            raise
        except Exception as error:
            failure = error
        text = None if failure is None else f"{type(failure).__name__}: {failure}"
        found: list[Any] = [None] * self.count
        with self.failing_alone():
            dist.all_gather_object(found, (value if share else None, text), self.group)
        failed = next((rank for rank, (_, text) in enumerate(found) if text is not None), None)
        if failed is None:
            return found[0][0] if share else value
        if failure is not None and failed == self.rank:
            raise failure
        raise SnapensError(f"the process with rank {failed} failed: {found[failed][1]}")

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank. Decisions that depend on time or signals are made this way."""
        if self.group is None:
            return flag
        found = torch.tensor([flag], dtype=torch.int32)
        with self.failing_alone():
            dist.all_reduce(found, dist.ReduceOp.MAX, self.group)
        return bool(found)

    def require_same(self, name: str, value: object) -> None:
        """Require that a value is the same on all ranks."""
        first = self.first(lambda: value)

        def compare() -> None:
            if value != first:
                raise MismatchError(
                    f"{name} must be the same for all processes, but those of rank {self.rank} and rank 0 differ: "
                    "use the same command and the same data on all machines"
                )

        self.agree(compare)

    @contextmanager
    def failing_alone(self) -> Iterator[None]:
        """Convert an error inside into a ProcessError, which ends the process: other ranks may be waiting for it."""
        try:
            yield
        except Exception as error:
            if self.group is None or isinstance(error, ProcessError):
                raise
            reason = f"failed: {type(error).__name__}: {error}"
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                reason = "lost its connection to another process, which has ended"
            raise ProcessError(f"the process with rank {self.rank} {reason}") from error

    # What follows is part of a step: on the device, in place, without waiting for the device.

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks (ranks, ...)."""
        found = tensor.new_zeros(self.count, *tensor.shape)
        found[self.rank] = tensor
        return self.add(found)

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.group is not None:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over all ranks, with one collective operation."""
        self._together(tensors, lambda flat: self.add(flat).div_(self.count))

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of rank 0, with one collective operation per dtype."""
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            self._together(same, lambda flat: dist.broadcast(flat, group=self.group, group_src=0))

    def _together(self, tensors: Sequence[Tensor], collective: Callable[[Tensor], object]) -> None:
        if self.group is None:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        collective(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        torch._foreach_copy_(list(tensors), [part.view(to.shape) for part, to in zip(parts, tensors, strict=True)])


def joined() -> World:
    """The processes that torchrun started, which the first call connects; without torchrun, this process alone."""
    if not dist.is_available() or not dist.is_torchelastic_launched() or os.environ["WORLD_SIZE"] == "1":
        return World()
    local_rank = int(os.environ["LOCAL_RANK"])
    if not dist.is_initialized():
        if local_rank < torch.cuda.device_count():
            torch.cuda.set_device(local_rank)
        store, rank, count = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # after a restart by torchrun, the store may still have the addresses of the processes before it
        attempt = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
        store = dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"  # objects are exchanged over gloo
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=_TIMEOUT)
        atexit.register(dist.destroy_process_group)  # threads of gloo could abort the interpreter at its end
    return World(dist.get_rank(), dist.get_world_size(), local_rank, dist.group.WORLD)
