"""Shards: the parts of one tensor that the ranks hold under FSDP2 (`fully_shard`), where parameters are DTensors."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import ArgumentError


def is_sharded(tensor: Tensor) -> bool:
    """Whether each rank holds only a part of the tensor."""
    # importing DTensor takes time; if it was not imported, no tensor can be a DTensor
    return isinstance(tensor, getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ()))


def local(tensor: Any) -> Tensor:
    """The part that this rank holds; a tensor that is not sharded is returned unchanged."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def gathered(tensor: Any) -> Tensor:
    """The whole tensor, without gradient; all ranks must gather a sharded tensor together."""
    tensor = tensor.detach()
    if not is_sharded(tensor):
        return tensor  # type: ignore[no-any-return]
    if tensor.device.type != tensor.device_mesh.device_type:  # CPU offloading: the group communicates on the device
        tensor = tensor.to(tensor.device_mesh.device_type)
    return tensor.full_tensor()  # type: ignore[no-any-return]


@torch.no_grad()
def assign(tensor: Any, whole: Tensor) -> None:
    """Copy a whole value into a tensor; if it is sharded, all ranks must do this together, with the same value."""
    if not is_sharded(tensor):
        tensor.copy_(whole)
        return
    from torch.distributed.tensor import distribute_tensor

    tensor.copy_(distribute_tensor(whole.to(tensor.device), tensor.device_mesh, tensor.placements))


def process_group(tensors: list[Any]) -> dist.ProcessGroup | None:
    """The group of the ranks that hold the shards; None if no tensor is sharded."""
    meshes = [tensor.device_mesh for tensor in tensors if is_sharded(tensor)]
    if not meshes:
        return None
    mesh = max(meshes, key=lambda mesh: mesh.size())
    if mesh.ndim == 1:
        return mesh.get_group()  # type: ignore[no-any-return]
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    raise ArgumentError(
        "process_group must be given if the device mesh of the model has several dimensions but not all processes, "
        f"got {mesh}: pass the group of the processes that train this model"
    )
