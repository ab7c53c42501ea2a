"""Remove BatchNorm from a network in evaluation mode where a convolution or linear layer directly precedes it."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import fuse_conv_bn_weights

from ..batches import scores
from .fusing import called, fuse, once

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_UNUSED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # in evaluation mode
_TOLERANCE = 1e-9  # of the largest score, in float64


@torch.no_grad()
def folded(network: nn.Module, example: Tensor, *, kernels: bool = False) -> nn.Module:
    """The network without the BatchNorm layers that can be folded, or the network itself.

    The data flow is found with `torch.fx`. A network that it cannot trace, or whose scores for `example` change,
    is returned unchanged. With `kernels`, additions and ReLU after a convolution become one kernel (`fusing.py`).
    """
    exact = deepcopy(network).double()
    inputs = example.double() if example.is_floating_point() else example
    try:
        expected = scores(exact(inputs.clone()))
        traced = fx.symbolic_trace(exact)
        _remove_unused(traced)
        _fold(traced)
        if kernels:
            fuse(traced)
        traced.delete_all_unused_submodules()
        traced.recompile()
        found = scores(traced(inputs.clone()))
        scores(traced.float()(example.clone()))  # it may contain a dtype of the float64 copy as a constant
    except Exception:  # code of the user, which can raise anything: it runs as it is, without folding
        return network
    if not isinstance(found, Tensor) or not torch.allclose(
        found, expected, rtol=0, atol=_TOLERANCE * float(expected.abs().max())
    ):
        return network
    return traced


def _remove_unused(traced: fx.GraphModule) -> None:
    """Remove the modules that return their input."""
    for node in list(traced.graph.nodes):
        if type(called(traced, node)) in _UNUSED:
            _bypass(traced, node)


def _fold(traced: fx.GraphModule) -> None:
    for node in list(traced.graph.nodes):
        before: Any = node.args[0] if node.args else None
        norm: Any = called(traced, node)
        layer: Any = called(traced, before)
        if type(norm) not in _NORMS or type(layer) not in _LAYERS:  # a subclass may compute something else
            continue
        if norm.running_mean is not None and len(before.users) == 1 and once(traced, before):
            layer.weight, layer.bias = fuse_conv_bn_weights(  # also right for linear layers
                layer.weight, layer.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            )
            _bypass(traced, node)


def _bypass(traced: fx.GraphModule, node: fx.Node) -> None:
    """Use the argument of a node instead of its result."""
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
    traced.graph.erase_node(node)
