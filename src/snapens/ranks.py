"""Ranks: the processes that train one model together."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .errors import ArgumentError
from .weights import layers


class Ranks:
    """One process, or those of a process group. Rank 0 uses the store, and all ranks get its result or its error.

    The group is that of the model's DDP wrapper unless another is given, because some frameworks hide the wrapper.
    """

    def __init__(self, model: nn.Module, group: Any = None) -> None:
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ArgumentError(
                f"process_group must be a torch.distributed process group or None, got {group!r}: "
                "pass torch.distributed.group.WORLD after init_process_group()"
            )
        wrapped = (w.process_group for w in layers(model) if isinstance(w, DistributedDataParallel))
        self.group: dist.ProcessGroup | None = group if group is not None else next(wrapped, None)
        self._model = model

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return 0 if self.group is None else dist.get_rank(self.group)

    def on_first(self, action: Callable[[], Any]) -> Any:
        """Call `action` on rank 0, and return its result, or raise its error, on all ranks."""
        if self.group is None:
            return action()
        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = action()
            except BaseException as error:  # an interrupt too: the other ranks must not wait forever
                outcome[1] = error
        nccl = dist.get_backend(self.group) == "nccl"
        device = next(self._model.parameters()).device if nccl else None
        dist.broadcast_object_list(outcome, dist.get_global_rank(self.group, 0), self.group, device)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Copy the tensor of rank 0 to all ranks, in place."""
        if self.group is not None:
            dist.broadcast(tensor, src=dist.get_global_rank(self.group, 0), group=self.group)
