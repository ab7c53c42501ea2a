"""Fixes for Triton's interpreter (3.6 to 3.9): NumPy 2.4, and bfloat16, which NumPy does not have."""

from inspect import signature

import numpy as np


def rounded(values):
    """Round float32 to the bits of bfloat16, to nearest, ties to even, as a GPU does; the interpreter truncates."""
    bits = values.astype(np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, nearest).astype(np.uint16)


def widened(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def repair():
    """Patch the interpreter; call this once, after TRITON_INTERPRET is set."""
    from triton import language as tl
    from triton.runtime import interpreter

    convert, patch, multiply = (
        interpreter._convert_float,
        interpreter._patch_lang_tensor,
        interpreter.InterpreterBuilder.create_dot,
    )

    def convert_float(values, source, target, rounding):
        if (source, target) == (tl.float32, tl.bfloat16):
            return rounded(values)
        if (source, target) == (tl.bfloat16, tl.float32):
            return widened(values)
        return convert(values, source, target, rounding)

    def patch_tensor(tensor, scope):
        patch(tensor, scope)
        # NumPy 2.4 rejects int(array), even for an array of one element
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def create_dot(self, a, b, d, *options):
        if a.dtype.scalar == tl.bfloat16:  # otherwise the bits are multiplied as integers
            a, b = (interpreter.TensorHandle(widened(x.data), tl.float32) for x in (a, b))
        return multiply(self, a, b, d, *options)

    def create_descriptor_reduce(self, kind, descriptor, value, indices):
        """Add, the only reduction in use; the interpreter lacks it. A sum of bfloat16 is rounded."""
        policies = len(signature(self.create_descriptor_load).parameters) - 2  # two in Triton 3.6, one in 3.9
        before = self.create_descriptor_load(descriptor, indices, *[None] * policies).data
        if value.dtype.scalar == tl.bfloat16:
            total = rounded(widened(before) + widened(value.data))
        else:
            total = before + value.data
        self.create_descriptor_store(descriptor, interpreter.TensorHandle(total, value.dtype.scalar), indices)

    interpreter.InterpreterBuilder.create_descriptor_reduce = create_descriptor_reduce
    interpreter.InterpreterBuilder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)  # as on a GPU
    interpreter._convert_float = convert_float
    interpreter._patch_lang_tensor = patch_tensor
    interpreter.InterpreterBuilder.create_dot = create_dot
