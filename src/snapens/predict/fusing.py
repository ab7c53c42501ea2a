"""Fuse what follows a convolution (bias, addition of a shortcut, ReLU) with it, and BatchNorm with ReLU.

At small batches a captured network costs about a microsecond per kernel, and at large batches each of these
operations reads and writes all feature maps.
"""

import operator
from importlib.util import find_spec

import torch
from torch import Tensor, fx, nn

_RELU_FUNCTIONS = (torch.relu, nn.functional.relu)
_ADDITIONS = (operator.add, operator.iadd, torch.add)
_HALVES = (torch.bfloat16, torch.float16)  # cuDNN's fused operations were tried with these
_PRECISIONS = (*_HALVES, torch.float32)
_ELEMENTS = 1024  # of one program
_LARGEST = 1 << 31  # elements that a kernel can index


class Epilogue(nn.Module):
    """relu(layer(x) + residual) for a convolution: one operation of cuDNN, or a convolution and the kernel."""

    shift: Tensor

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        if layer.bias is None:
            layer.bias = nn.Parameter(layer.weight.new_zeros(layer.out_channels))
        self.register_buffer("shift", layer.bias.detach().clone())  # the layer's own bias will be rounded
        self.layer, self._fused = layer, True

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(images, inputs, height, width) -> (images, outputs, height, width)."""
        layer = self.layer
        if self._fused and self._suits_cudnn(x, residual):
            try:
                return self._by_cudnn(x.to(layer.weight.dtype), residual)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:  # cuDNN has no such operation for these shapes
                self._fused = False
        y = nn.functional.conv2d(x, layer.weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
        return affine_relu(y, None, self.shift, residual, out=y)

    def _suits_cudnn(self, x: Tensor, residual: Tensor | None) -> bool:
        layer = self.layer
        if not layer.weight.is_cuda or layer.weight.dtype not in _HALVES or isinstance(layer.padding, str):
            return False
        window = zip(x.shape[2:], layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True)
        sides = ((side + 2 * p - d * (k - 1) - 1) // s + 1 for side, k, s, p, d in window)
        shape = torch.Size((len(x), layer.out_channels, *sides))
        same = residual is None or (residual.shape == shape and residual.dtype == layer.weight.dtype)
        return same and max(x.numel(), shape.numel()) < _LARGEST

    def _by_cudnn(self, x: Tensor, residual: Tensor | None) -> Tensor:
        layer = self.layer
        assert isinstance(layer.padding, tuple)
        place = layer.stride, layer.padding, layer.dilation, layer.groups
        if residual is None:
            return torch.cudnn_convolution_relu(x, layer.weight, layer.bias, *place)
        return torch.cudnn_convolution_add_relu(x, layer.weight, residual, 1.0, layer.bias, *place)


class NormRelu(nn.Module):
    """relu(norm(x)), for a BatchNorm that could not be folded."""

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = (norm.running_var + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight.detach()
        shift = -norm.running_mean * scale
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift if norm.bias is None else shift + norm.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """(images, channels, height, width) -> the same shape."""
        return affine_relu(x, self.scale, self.shift)


def affine_relu(
    x: Tensor, scale: Tensor | None, shift: Tensor, residual: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """relu(x * scale + shift + residual) with one scale and shift per channel, computed in float32 or wider.

    `x` is (images, channels, height, width). The result can be written over x (`out`).
    """
    fits = residual is None or (residual.shape == x.shape and residual.dtype == x.dtype)
    if not fits or not _can_run(x):
        return _affine_relu(x, scale, shift, residual)
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    from .kernels import affine_relu as kernel

    out = torch.empty_like(x, memory_format=torch.channels_last) if out is None else out
    kernel[(-(-x.numel() // _ELEMENTS),)](
        x, shift if scale is None else scale, shift, x if residual is None else residual, out, x.numel(),
        CHANNELS=x.shape[1], SCALE=scale is not None, RESIDUAL=residual is not None, ELEMENTS=_ELEMENTS,
    )  # fmt: skip
    return out


def _affine_relu(x: Tensor, scale: Tensor | None, shift: Tensor, residual: Tensor | None) -> Tensor:
    """The same, for tensors that the kernel does not support."""
    shape = (1, -1, *(1,) * (x.ndim - 2))
    y = x.to(torch.promote_types(x.dtype, shift.dtype))
    y = (y if scale is None else y * scale.view(shape)) + shift.view(shape)
    return (y if residual is None else y + residual).relu().to(x.dtype)


def _can_run(x: Tensor) -> bool:
    return (
        x.is_cuda
        and x.ndim == 4
        and x.dtype in _PRECISIONS
        and 0 < x.numel() < _LARGEST
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def available(device: torch.device) -> bool:
    """Whether the kernel can run on a device."""
    return device.type == "cuda" and find_spec("triton") is not None


def fuse(traced: fx.GraphModule) -> None:
    """Replace the patterns in a traced network in evaluation mode."""
    for node in list(traced.graph.nodes):
        if _is_relu(traced, node):
            _replace(traced, node)
    traced.graph.eliminate_dead_code()


def _replace(traced: fx.GraphModule, relu: fx.Node) -> None:
    """Replace a ReLU, together with what precedes it, where that is possible."""
    before = relu.args[0]
    assert isinstance(before, fx.Node)
    arguments: tuple[fx.Node, ...] = (before,)
    if before.op == "call_function" and before.target in _ADDITIONS and len(before.args) == 2 and not before.kwargs:
        arguments = tuple(argument for argument in before.args if isinstance(argument, fx.Node))
        if len(arguments) != 2:
            return
        if before.target is not operator.iadd and not _is_convolution(traced, arguments[0]):
            arguments = arguments[::-1]
    source, *residual = arguments
    module = called(traced, source)
    if len(before.users) > 1 or len(source.users) > 1:
        return
    fused: nn.Module
    if _is_convolution(traced, source):
        fused = Epilogue(module)  # type: ignore[arg-type]
    elif type(module) is nn.BatchNorm2d and module.running_mean is not None and not residual:
        fused = NormRelu(module)
    else:
        return
    name = f"fused_{relu.name}"
    traced.add_submodule(name, fused)
    with traced.graph.inserting_before(relu):
        new = traced.graph.call_module(name, (source.args[0], *residual))
    relu.replace_all_uses_with(new)
    traced.graph.erase_node(relu)


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    if len(node.args) != 1 or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    if node.op == "call_function":
        return node.target in _RELU_FUNCTIONS
    return type(called(traced, node)) is nn.ReLU


def _is_convolution(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node is the only call of a two-dimensional convolution."""
    module = called(traced, node)
    return type(module) is nn.Conv2d and module.padding_mode == "zeros" and once(traced, node)


def called(traced: fx.GraphModule, node: object) -> nn.Module | None:
    """The module that a node calls with one argument, if it has no hooks."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = traced.get_submodule(str(node.target))
    return None if module._forward_hooks or module._forward_pre_hooks else module


def once(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether the module that a node calls has no other call."""
    return [other.target for other in traced.graph.nodes if other.op == "call_module"].count(node.target) == 1
