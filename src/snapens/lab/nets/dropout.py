"""Dropout whose masks are a pure function of a key, so that a run can be repeated anywhere and resumed at any step."""

import torch
from torch import Tensor, nn

from ...errors import ArgumentError

LOW_32_BITS = 0xFFFFFFFF


class KeyedDropout(nn.Module):
    """Zeroes each value with probability p, as (key, layer, position) decide, and scales the others by 1 / (1 - p).

    `key` is one int64 that the training loop changes before every step; the masks are the same on every device and in
    every memory format. In eval mode nothing is dropped.
    """

    key: Tensor
    layer: Tensor

    def __init__(self, p: float, layer: int) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ArgumentError(f"dropout must be at least 0 and less than 1, got {p!r}")
        self.p = p
        self.register_buffer("key", torch.zeros(1, dtype=torch.int64), persistent=False)
        # a tensor, not an int: otherwise torch.compile would make one program for each layer
        self.register_buffer("layer", torch.tensor([layer], dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The values of x that are kept, scaled; any shape."""
        if not self.training or self.p == 0:
            return x
        stream = mix32(mix32(mix32(self.layer) ^ self.key) ^ self.key >> 32)
        position = torch.arange(x.numel(), device=x.device).view(x.shape)
        kept = mix32(position ^ stream) >= round(self.p * 2**32)
        return x * kept * (1 / (1 - self.p))  # not torch.where, which would take the mask's memory format

    def extra_repr(self) -> str:
        """For print."""
        return f"p={self.p}"


def mix32(x: Tensor) -> Tensor:
    """The low 32 bits of an int64 tensor, thoroughly mixed: Wellons' lowbias32, a bijection of 32-bit integers."""
    x = x & LOW_32_BITS
    x = (x ^ x >> 16) * 0x7FEB352D & LOW_32_BITS
    x = (x ^ x >> 15) * 0x846CA68B & LOW_32_BITS
    return x ^ x >> 16


def keyed(network: nn.Module) -> nn.Module:
    """The network with each `nn.Dropout` in it replaced by a `KeyedDropout`, numbered from 0 in module order."""
    layer = 0
    for module in network.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, KeyedDropout(child.p, layer))
                layer += 1
    return network
