"""How the engine runs a network: its own kernels, the memory format, the precision, compiled blocks."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import nn

from .. import nets


def accelerated(network: nn.Module, name: str, *, kernels: bool = True) -> nn.Module:
    """The network with this name in a recipe, after switching on the kernels that it may have; channels last."""
    if kernels and name in nets.NETWORKS:  # a user's network may not meet the assumptions of the kernels
        nets.accelerate(network)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast to bfloat16 on a GPU; float32 on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def compile_blocks(network: nn.Module) -> None:
    """Compile each repeated block of the network; the first call takes long."""
    for block in nets.blocks(network):
        block.forward = MethodType(_compiled(type(block).forward), block)


@cache
def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward function of a repeated block, compiled once for all blocks of equal shape."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 256)  # DenseNet-100's layers
    return torch.compile(forward, dynamic=False)
