"""Floating-point operations: how many the training of one image needs, and how many a GPU performs per second."""

import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from .. import nets
from ..data.images import ImageData
from ..recipe.recipe import Recipe

_SIDE = 8192  # of the matrices: large enough for full speed
_PRODUCTS = 40


def per_image(recipe: Recipe, images: ImageData) -> float:
    """The operations of a forward and a backward pass: two per multiplication with addition, matrix products only."""
    with torch.device("meta"):
        network = nets.of(recipe, len(images.classes), images.inputs)
        inputs = torch.empty(2, images.channels, images.size, images.size)
    with FlopCounterMode(display=False) as counter:
        network(inputs).sum().backward()
    operations: int = counter.get_total_flops()
    return operations / len(inputs)


def peak_per_second(device: torch.device) -> float:
    """The operations per second of a large matrix product in bfloat16, as measured now."""
    a, b = torch.randn(2, _SIDE, _SIDE, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    for _ in range(_PRODUCTS // 4):
        torch.mm(a, b, out=out)
    torch.cuda.synchronize(device)
    begun = time.monotonic()
    for _ in range(_PRODUCTS):
        torch.mm(a, b, out=out)
    torch.cuda.synchronize(device)
    return _PRODUCTS * 2 * _SIDE**3 / (time.monotonic() - begun)
