"""The kernel of `fusing.py`, in Triton. Import it only where there is a GPU."""

import triton
from triton import language as tl


@triton.jit
def affine_relu(
    x, scale, shift, residual, out, elements,
    CHANNELS: tl.constexpr, SCALE: tl.constexpr, RESIDUAL: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    """relu(x * scale + shift + residual) for tensors that are channels last in memory."""
    at = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < elements
    channel = at % CHANNELS
    y = tl.load(x + at, inside).to(tl.float32)
    if SCALE:
        y *= tl.load(scale + channel)
    y += tl.load(shift + channel)
    if RESIDUAL:
        y += tl.load(residual + at, inside).to(tl.float32)
    y = tl.where(y < 0, 0.0, y)  # keeps NaN, as torch does
    tl.store(out + at, y.to(out.dtype.element_ty), inside)
