"""Dropout whose masks are a pure function of a key, so a run can be repeated anywhere and resumed at any step."""

import torch
from torch import Tensor, nn

from ...errors import ArgumentError

LOW_32_BITS = 0xFFFFFFFF


class KeyedDropout(nn.Module):
    """Set each value to 0 with probability p, by a hash of (key, layer, position), and scale the others by 1 / (1 - p).

    `key` is one int64 that the training loop changes before every step. The masks are the same on every device and in
    every memory format. In eval mode nothing is dropped.
    """

    key: Tensor
    layer: Tensor
    part = 0
    """The number of the part of a batch that x is, if several processes each have an equal part. Positions are those in
    the whole batch, so that the masks do not depend on the number of processes."""

    def __init__(self, p: float, layer: int) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ArgumentError(f"dropout must be at least 0 and less than 1, got {p!r}")
        self.p = p
        self.register_buffer("key", torch.zeros(1, dtype=torch.int64), persistent=False)
        # not an int, for which torch.compile would make one program per layer
        self.register_buffer("layer", torch.tensor([layer], dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, of any shape, with some values set to 0 and the others scaled."""
        if not self.training or self.p == 0:
            return x
        stream = mix32(mix32(mix32(self.layer) ^ self.key) ^ self.key >> 32)
        first = self.part * x.numel()
        position = torch.arange(first, first + x.numel(), device=x.device).view(x.shape)
        kept = mix32(position ^ stream) >= round(self.p * 2**32)
        return x * kept * (1 / (1 - self.p))  # torch.where would return the memory format of the mask


def mix32(x: Tensor) -> Tensor:
    """Hash the low 32 bits of an int64 tensor with Wellons' lowbias32, a bijection of 32-bit integers."""
    x = x & LOW_32_BITS
    x = (x ^ x >> 16) * 0x7FEB352D & LOW_32_BITS
    x = (x ^ x >> 15) * 0x846CA68B & LOW_32_BITS
    return x ^ x >> 16


def keyed(network: nn.Module) -> nn.Module:
    """Replace each `nn.Dropout` of a network by a `KeyedDropout`, numbered from 0 in module order."""
    layer = 0
    for module in network.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, KeyedDropout(child.p, layer))
                layer += 1
    return network
