"""Folded networks against the networks as they were, in float64."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from predict_reference import Centred, Residual, Shaped, Waiting, varied
from torch import nn

from snapens.lab import nets
from snapens.predict import fusing
from snapens.predict.folding import folded

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def kinds(network):
    return [type(module).__name__ for module in network.modules()]


def assert_same(network, other, x):
    with torch.no_grad():
        expected, found = network.double()(x.double()), other.double()(x.double())
    assert torch.allclose(expected, found, rtol=0, atol=1e-5 * float(expected.abs().max()))  # weights are float32


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(
    ("name", "norms_left"),
    [("small", 0), ("wrn32", 0), ("resnet110", 0), ("resnet50", 0), ("densenet40", 39), ("wrn16x8", 6)],
)
def test_a_folded_network_computes_the_same_scores(name, norms_left, kernels):
    network, x = varied(nets.build(name, classes=7, channels=3)), torch.randn(2, 3, 32, 32)
    other = folded(network, x, kernels=kernels)
    assert kinds(other).count("NormRelu" if kernels else "BatchNorm2d") == norms_left
    assert not kernels or "ReLU" not in kinds(other)
    assert "BatchNorm2d" in kinds(network)
    assert_same(network, other, x)


def test_a_table_network_is_folded():
    network, x = varied(nets.build("mlp", classes=3, inputs={"features": 6})), torch.randn(4, 6)
    other = folded(network, x)
    assert "BatchNorm1d" not in kinds(other)
    assert_same(network, other, x)


@pytest.mark.parametrize("build", [Shaped, Waiting])
def test_a_network_that_cannot_be_traced_stays_as_it_is(build):
    network = varied(build())
    assert folded(network, torch.randn(2, 3, 8, 8)) is network


def test_a_network_that_does_not_run_in_float32_after_folding_stays_as_it_is():
    network = varied(Centred())
    assert folded(network, torch.randn(2, 3, 8, 8)) is network


class Twice(nn.Module):
    """One convolution with two norms; one convolution that is also read before its norm."""

    def __init__(self):
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(3))

    def forward(self, x):
        y = self.norms[1](self.conv(self.norms[0](self.conv(x))))
        z = self.other(y)
        return (z + self.norms[2](z).relu()).mean((2, 3))


def test_a_convolution_that_is_used_twice_keeps_its_norms():
    network, x = varied(Twice()), torch.randn(2, 3, 4, 4)
    for kernels in (False, True):
        other = folded(network, x, kernels=kernels)
        assert kinds(other).count("BatchNorm2d") + kinds(other).count("NormRelu") == 3
        assert_same(network, other, x)


class Overwriting(nn.Module):
    """Changes the input of a convolution before the sum that is to be fused with it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        y = self.conv(x := x + 1)
        return torch.relu(y + x.mul_(2)).mean((2, 3))


def test_a_network_whose_scores_would_change_stays_as_it_is():
    network = Overwriting().eval()
    assert folded(network, torch.randn(2, 3, 4, 4), kernels=True) is network


def test_hooks_of_a_layer_are_kept():
    network, seen = varied(Residual()), []
    network.conv1.register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(2, 3, 8, 8)
    other = folded(network, x)
    assert kinds(other).count("BatchNorm2d") == 1
    seen.clear()
    other(x)
    assert seen == [1]


def test_a_convolution_with_other_padding_than_zeros_is_not_fused():
    network = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular"), nn.ReLU()).eval()
    assert "Epilogue" not in kinds(folded(network, torch.randn(2, 3, 4, 4), kernels=True))


def fused_with(monkeypatch, error):
    """A convolution with a ReLU for which cuDNN raises an error, its input and its output."""
    layer, x = nn.Conv2d(3, 3, 1), torch.randn(2, 3, 4, 4)

    def failing(*_):
        raise error

    expected = torch.relu(layer(x))
    fused = fusing.Epilogue(layer)
    monkeypatch.setattr(fused, "_suits_cudnn", lambda *_: True)
    monkeypatch.setattr(fused, "_by_cudnn", failing)
    return fused, x, expected


def test_the_kernel_takes_over_where_cudnn_cannot_compute_a_convolution(monkeypatch):
    fused, x, expected = fused_with(monkeypatch, RuntimeError("unable to find an engine"))
    assert torch.allclose(fused(x), expected, atol=1e-6)


def test_a_lack_of_memory_is_not_taken_for_a_missing_operation(monkeypatch):
    fused, x, _ = fused_with(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    for _ in range(2):  # the second call tries it again
        with pytest.raises(torch.OutOfMemoryError):
            fused(x)


def test_a_shortcut_of_another_shape_is_broadcast():
    x, shift, shortcut = torch.randn(2, 3, 4, 4), torch.randn(3), torch.randn(1, 3, 1, 1)
    expected = torch.relu(x + shift.view(1, 3, 1, 1) + shortcut)
    assert torch.equal(fusing.affine_relu(x, None, shift, shortcut), expected)


@pytest.mark.skipif(not INTERPRETED, reason="Triton's interpreter needs its own process")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("images", "channels", "side"), [(1, 16, 8), (3, 12, 5), (2, 1, 3), (70, 5, 2)])
def test_the_kernel_computes_the_formula(monkeypatch, dtype, images, channels, side):
    from interpreter import repair

    repair()
    monkeypatch.setattr(fusing, "_can_run", lambda x: True)
    x, residual = torch.randn(2, images, channels, side, side).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    x[0, 0, 0, 0] = torch.nan
    scale, shift = torch.randn(2, channels)
    for a, b in ((None, None), (scale, None), (None, residual), (scale, residual)):
        y = x.double() * (1 if a is None else a.view(1, -1, 1, 1)) + shift.view(1, -1, 1, 1)
        expected = torch.relu(y if b is None else y + b.double()).to(dtype)
        found = fusing.affine_relu(x, a, shift, b)
        assert torch.allclose(
            found, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6, equal_nan=True
        )
        assert found.is_contiguous(memory_format=torch.channels_last)
    assert fusing.affine_relu(x, None, shift, out=x) is x


@pytest.mark.skipif(INTERPRETED, reason="this process is the interpreter's")
def test_the_kernel_computes_the_formula_in_the_interpreter():
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__)), "-k", "formula"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert result.returncode == 0, result.stdout + result.stderr
    assert "8 passed" in result.stdout
