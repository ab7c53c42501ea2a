"""The kernels of a dense block compile for an H100 with the arguments of their launches. No GPU is needed.

The compiler may reject what the interpreter accepts, and only compiling shows whether a tile fits.
"""

import inspect

import pytest
import torch

from snapens.lab.nets.dense import fused
from snapens.lab.nets.dense import passes as dense_passes
from snapens.lab.nets.dense.densenet import Layer
from snapens.lab.nets.dense.shapes import SHARED_BYTES
from snapens.lab.nets.dropout import keyed

triton = pytest.importorskip("triton")
pytest.importorskip("triton.backends.nvidia.compiler")
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int64: "i64"}


def described(argument):
    """The type of an argument in the signature of a kernel, and whether 16 divides the argument."""
    if isinstance(argument, torch.Tensor):
        return f"*{TYPES[argument.dtype]}", argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return "i32", argument % 16 == 0
    if isinstance(argument, float):
        return "fp32", False
    block = ", ".join(map(str, argument.block_shape))
    return f"tensordesc<{TYPES[argument.base.dtype]}[{block}]>", False


@pytest.fixture
def compiled(monkeypatch):
    """Compiled kernels by name; a launch compiles its kernel instead of running it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    kept, sources = {}, set()

    def run(self, *arguments, grid, warmup, num_warps=4, num_stages=3, **constants):
        found = inspect.signature(self.fn).bind(*arguments, **constants).arguments
        names = list(found)
        kinds = {name: described(value) for name, value in found.items() if name not in constants}
        free = {self.arg_names[i] if isinstance(i, int) else i for i in self.do_not_specialize or ()}
        aligned = [name for name, (_, is_aligned) in kinds.items() if is_aligned and name not in free]
        source = ASTSource(
            self,
            {name: "constexpr" if name in constants else kinds[name][0] for name in names},
            {(names.index(name),): value for name, value in constants.items()},
            {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
        )
        if (key := f"{source.hash()} {num_warps} {num_stages}") not in sources:
            sources.add(key)
            options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
            kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
            kept.setdefault(self.fn.__name__, []).append(kernel)

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(dense_passes, "processors", lambda device: 132)
    return kept


FORWARD = {"take_in", "prepare", "taps", "gather", "close"}
BACKWARD = {"close_backward", "outgoing", "layer_backward", "combine", "incoming"}


def block(growth, dropout=0.0, dtype=torch.bfloat16):
    layers = keyed(torch.nn.ModuleList(Layer(16 + growth * i, growth, dropout) for i in range(2)))
    for layer in layers:
        layer.conv.to(dtype)
    return layers, torch.nn.BatchNorm2d(16 + 2 * growth)


@pytest.mark.parametrize(
    ("growth", "side", "dropout", "dtype"),
    [
        (24, 32, 0, torch.bfloat16),
        (24, 16, 0, torch.bfloat16),
        (24, 8, 0.2, torch.bfloat16),
        (12, 32, 0, torch.bfloat16),
        (12, 8, 0, torch.bfloat16),
        (28, 8, 0, torch.bfloat16),
        (24, 8, 0, torch.float32),
        pytest.param(5, 8, 0, torch.float32, marks=pytest.mark.long),  # slow to compile, and no network of the lab
    ],
)
def test_a_training_step_compiles_for_a_gpu(compiled, growth, side, dropout, dtype):
    x = torch.zeros(64, 16, side, side, dtype=dtype, requires_grad=True)
    fused.dense_block(x, *block(growth, dropout, dtype), 2).sum().backward()
    assert {*compiled} == FORWARD | BACKWARD
    for kernel in (kernel for kernels in compiled.values() for kernel in kernels):
        assert kernel.metadata.shared <= SHARED_BYTES
    for product in [*compiled["taps"], *compiled["layer_backward"]]:
        assert "wgmma" in product.asm["ptx"]


def test_evaluation_compiles_for_a_gpu(compiled):
    layers, closing = block(12)
    with torch.no_grad():
        fused.dense_block(torch.zeros(1, 16, 8, 8, dtype=torch.bfloat16), layers.eval(), closing.eval(), 8)
    assert {*compiled} == FORWARD
