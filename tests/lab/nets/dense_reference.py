"""A dense block made of the plain modules, which the tests compare the kernels with."""

import torch
from torch import nn, relu
from torch.nn.functional import avg_pool2d, conv2d

from snapens.lab.nets.dense.densenet import Layer, densenet
from snapens.lab.nets.dropout import KeyedDropout, keyed


def small(dropout=0.0, depth=10):
    torch.manual_seed(3)
    return keyed(densenet(depth=depth, growth=12, classes=5, dropout=dropout))


class Block(nn.Module):
    """The layers of a dense block and its closing norm, with random parameters and statistics."""

    def __init__(self, inputs, growth, layers, dropout=0.0):
        super().__init__()
        widths = [inputs + layer * growth for layer in range(layers + 1)]
        self.layers = nn.ModuleList(Layer(width, growth, dropout) for width in widths[:-1])
        self.norm = nn.BatchNorm2d(widths[-1])
        for norm in self.modules():
            if isinstance(norm, nn.BatchNorm2d):
                nn.init.normal_(norm.weight, 1, 0.3)
                nn.init.normal_(norm.bias, 0, 0.3)
                nn.init.normal_(norm.running_mean)
                nn.init.uniform_(norm.running_var, 0.5, 2)
        keyed(self)
        for k, dropout in enumerate(module for module in self.modules() if isinstance(module, KeyedDropout)):
            dropout.layer.fill_(k + 7)
            dropout.key = torch.tensor([2**40 + 3])

    def forward(self, x, factor):
        for layer in self.layers:
            x = layer(x)
        return avg_pool2d(relu(self.norm(x)), factor)


class Rounded(torch.autograd.Function):
    """Rounds a tensor to bfloat16 and back, and its gradient too."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.bfloat16().to(gradient.dtype)


def as_autocast(block, x, factor):
    """The plain modules in float64, rounded wherever autocast has a tensor of bfloat16."""
    rounded = Rounded.apply
    for layer in block.layers:
        x = rounded(x)  # for the gradient, which is a sum
        y = rounded(conv2d(rounded(relu(rounded(layer.norm(x)))), rounded(layer.conv.weight), padding=1))
        x = torch.cat([x, rounded(layer.dropout(y))], dim=1)
    return rounded(avg_pool2d(relu(rounded(block.norm(rounded(x)))), factor))


def outcome(block, compute, x, upstream):
    """The output, the gradients and the buffers of a training step, by name."""
    x = x.clone().requires_grad_()
    out = compute(x)
    out.backward(upstream.to(out))
    gradients = {f"d {name}": parameter.grad for name, parameter in block.named_parameters()}
    return {"out": out.detach(), "d x": x.grad, **gradients, **dict(block.named_buffers())}


def error(found, expected):
    """The relative error of a whole tensor."""
    assert found.shape == expected.shape
    found, expected = found.double().cpu(), expected.double().cpu()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-300))


KINDS = ["out", "d x", "conv.weight", "norm.weight", "norm.bias", "running_mean", "running_var"]


def errors_by_kind(found, expected):
    """The error of all tensors of a kind together, without the counts of batches."""
    errors = {name: error(found[name], expected[name]) for name in expected}
    return {kind: sum(errors[name] ** 2 for name in errors if name.endswith(kind)) ** 0.5 for kind in KINDS}
