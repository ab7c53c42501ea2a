"""Ranks: the processes that train one model together."""

import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import shards
from .errors import ArgumentError, SnapensError
from .weights import layers, tensors


class Ranks:
    """One process, or the processes of a group. Rank 0 uses the store, and all ranks get its result or its error.

    By default, the group is that of the model's DDP wrapper or, under FSDP2, of its parameters. If a framework hides
    the wrapper, the group must be given.
    """

    def __init__(self, model: nn.Module, group: Any) -> None:
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ArgumentError(
                f"process_group must be a torch.distributed process group or None, got {group!r}: "
                "pass torch.distributed.group.WORLD after init_process_group()"
            )
        wrapped = (w.process_group for w in layers(model) if isinstance(w, DistributedDataParallel))
        if group is None and (group := next(wrapped, None)) is None:
            group = shards.process_group([*tensors(model).values()])
        self.group: dist.ProcessGroup | None = group
        self._model = model

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return 0 if self.group is None else dist.get_rank(self.group)

    def together(self, action: Callable[[], Any]) -> list[Any]:
        """Call `action` on every rank and return the results of all ranks; an error on one rank is raised on all."""
        if self.group is None:
            return [action()]
        result, error = None, None
        try:
            result = action()
        except BaseException as raised:  # an interrupt too: the other ranks must not wait forever
            error = raised
        results: list[Any] = [None] * dist.get_world_size(self.group)
        parameter = next(self._model.parameters())
        with torch.cuda.device_of(parameter):  # type: ignore[no-untyped-call]  # NCCL uses the current GPU
            dist.all_gather_object(results, (result, _sendable(error)), self.group)
        results[self.rank] = result, error  # the error with its traceback
        for _, error in results:
            if error is not None:
                raise error
        return [result for result, _ in results]

    def on_first(self, action: Callable[[], Any], others: Callable[[], Any]) -> Any:
        """Call `action` on rank 0 and `others` on the other ranks; return the result of rank 0 on all ranks."""
        return self.together(action if self.rank == 0 else others)[0]

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Copy the tensor of rank 0 to all ranks, in place."""
        if self.group is not None:
            dist.broadcast(tensor, src=dist.get_global_rank(self.group, 0), group=self.group)


def _sendable(error: BaseException | None) -> BaseException | None:
    """The error, or its text in one of ours if pickle cannot restore it on the other ranks."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return SnapensError(f"{type(error).__name__}: {error}")
    return error
