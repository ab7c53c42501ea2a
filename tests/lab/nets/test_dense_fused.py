"""The fused dense block against the plain modules in float64: compiled on a GPU, otherwise in Triton's interpreter.

Triton decides when it is first imported whether it interprets its kernels, so the interpreter needs its own process.
"""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dense_reference import KINDS, Block, as_autocast, error, errors_by_kind, outcome, small
from torch import nn

from snapens.lab import nets
from snapens.lab.nets.dense import fused
from snapens.lab.nets.dense import passes as dense_passes

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
here = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a CUDA device")
if INTERPRETED:
    from interpreter import repair

    repair()
    fused._can_run = lambda device: True
# the interpreter also computes values that are masked out later
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def interpret(*options):
    """Run this file in a process in which Triton interprets its kernels."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__)), *options]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(INTERPRETED, reason="this process is the interpreter's")
def test_the_brief_cases_pass_in_the_interpreter():
    interpret("-k", "brief and not interpreter")


@pytest.mark.long
@pytest.mark.skipif(INTERPRETED, reason="this process is the interpreter's")
def test_all_cases_pass_in_the_interpreter():
    interpret()


@pytest.fixture(autouse=True)
def _without_tf32():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Memory that no kernel has written is NaN."""
    for owner, name in [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]:
        plain = getattr(owner, name)

        def poisoned(*arguments, plain=plain, **options):
            found = plain(*arguments, **options)
            return found.fill_(float("nan")) if found.is_floating_point() else found

        monkeypatch.setattr(owner, name, poisoned)


def accelerated(dropout=0.0, depth=10):
    network = small(dropout, depth).to(DEVICE)
    assert nets.accelerate(network)
    return network


SHAPES = [
    # images, inputs, growth, layers, side, factor, dropout
    pytest.param(3, 16, 24, 2, 4, 4, 0.0, id="brief"),
    (2, 16, 12, 3, 8, 2, 0.0),
    (2, 20, 5, 3, 6, 2, 0.0),
    (5, 20, 12, 2, 6, 1, 0.2),
    (3, 16, 5, 2, 7, 7, 0.5),
]


@here
@pytest.mark.parametrize(("images", "inputs", "growth", "layers", "side", "factor", "dropout"), SHAPES)
def test_a_training_step_equals_the_plain_modules_in_float64(images, inputs, growth, layers, side, factor, dropout):
    block = Block(inputs, growth, layers, dropout)
    x = torch.randn(images, inputs, side, side) * torch.rand(inputs, 1, 1) + torch.randn(inputs, 1, 1)
    upstream = torch.randn(images, inputs + layers * growth, side // factor, side // factor)
    plain = copy.deepcopy(block).double()
    expected = outcome(plain, lambda x: plain(x, factor), x.double(), upstream.double())
    block.to(DEVICE)
    compute = lambda x: fused.dense_block(x, block.layers, block.norm, factor)  # noqa: E731
    found = outcome(block, compute, x.to(DEVICE), upstream.to(DEVICE))
    assert found.keys() == expected.keys()
    errors = {name: error(found[name], expected[name]) for name in expected}
    assert max(errors.values()) < 1e-4, errors
    if dropout:
        kept = (found["out"] != 0).cpu()
        assert kept.equal(expected["out"].float() != 0)


@here
@pytest.mark.parametrize("count", [1, 40])
def test_neither_the_number_of_ranges_nor_of_partial_statistics_matters(monkeypatch, count):
    """Forty processors have more ranges than `combine` adds up at a time; two partials at a time need many rounds."""
    monkeypatch.setattr(dense_passes, "processors", lambda device: count)
    monkeypatch.setattr(dense_passes, "PARTIALS", 2)
    block = Block(16, 12, 2)
    x, upstream = torch.randn(20, 16, 8, 8) + 3, torch.randn(20, 40, 4, 4)
    plain = copy.deepcopy(block).double()
    expected = outcome(plain, lambda x: plain(x, 2), x.double(), upstream.double())
    block.to(DEVICE)
    compute = lambda x: fused.dense_block(x, block.layers, block.norm, 2)  # noqa: E731
    found = outcome(block, compute, x.to(DEVICE), upstream.to(DEVICE))
    errors = {name: error(found[name], expected[name]) for name in expected}
    assert max(errors.values()) < 1e-4, errors


FULL = [(64, 32, 24), (64, 16, 24), (64, 8, 24), (64, 32, 12), (64, 8, 12)]  # tiles that small shapes do not use


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("images", "side", "growth"), FULL)
def test_at_full_size_the_error_in_bfloat16_is_that_of_the_plain_modules(images, side, growth):
    block = Block(64, growth, 3).cuda().to(memory_format=torch.channels_last)
    shapes = [(images, channels, side, side) for channels in (64, 64 + 3 * growth)]
    x, upstream = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    exact, plain = copy.deepcopy(block).double(), copy.deepcopy(block)
    expected = outcome(exact, lambda x: exact(x, 1), x.double(), upstream.double())
    with torch.autocast("cuda", torch.bfloat16):
        found = outcome(block, lambda x: fused.dense_block(x, block.layers, block.norm, 1), x, upstream)
        theirs = errors_by_kind(outcome(plain, lambda x: plain(x, 1), x, upstream), expected)
    ours = errors_by_kind(found, expected)
    assert all(ours[kind] <= 1.5 * theirs[kind] for kind in KINDS), (ours, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("images", "side", "growth"), FULL)
def test_at_full_size_float32_is_near_float64(images, side, growth):
    """Activations are far from zero, so that rounding does not move them across the ReLU."""
    block = Block(64, growth, 3).cuda()
    for norm in block.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.1, 0.3)
            norm.bias.data = torch.randn_like(norm.bias).sign() * 2.5
    x, upstream = (torch.randn(images, c, side, side, device="cuda") for c in (64, 64 + 3 * growth))
    exact = copy.deepcopy(block).double()
    expected = outcome(exact, lambda x: exact(x, 1), x.double(), upstream.double())
    found = outcome(block, lambda x: fused.dense_block(x, block.layers, block.norm, 1), x, upstream)
    errors = {name: error(found[name], expected[name]) for name in expected}
    assert max(errors.values()) < 1e-4, errors


@here
@pytest.mark.parametrize("where", ["image", "conv.weight", "norm.weight", "norm.bias"])
def test_nan_reaches_the_output(where):
    """A run that has diverged must not look healthy."""
    network, images = accelerated(), torch.randn(4, 3, 8, 8, device=DEVICE)
    if where == "image":
        images[0, 0, 0, 0] = float("nan")
    else:
        network.get_parameter(f"blocks.1.{where}").data.view(-1)[0] = float("nan")
    assert network(images).isnan().all(dim=1).any()


@here
def test_a_key_that_changes_before_the_backward_pass_is_rejected():
    block = Block(16, 5, 2, dropout=0.5).to(DEVICE)
    out = fused.dense_block(torch.randn(2, 16, 4, 4, device=DEVICE), block.layers, block.norm, 1)
    block.layers[0].dropout.key += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


class Severed(torch.autograd.Function):
    """Has no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


@here
def test_there_are_no_gradients_if_the_loss_does_not_depend_on_the_output():
    block, x = Block(16, 5, 2).to(DEVICE), torch.randn(2, 16, 4, 4, device=DEVICE, requires_grad=True)
    (Severed.apply(fused.dense_block(x, block.layers, block.norm, 1)).sum() + x.sum()).backward()
    assert x.grad.eq(1).all()
    assert all(parameter.grad is None for parameter in block.parameters())


@here
def test_the_same_input_gives_the_same_bits():
    block = Block(20, 12, 2, dropout=0.2).to(DEVICE)
    x, upstream = torch.randn(3, 20, 6, 6, device=DEVICE), torch.randn(3, 44, 3, 3, device=DEVICE)
    twice = []
    for _ in range(2):
        again = copy.deepcopy(block)
        twice.append(outcome(again, lambda x: fused.dense_block(x, again.layers, again.norm, 2), x, upstream))  # noqa: B023
    assert all(twice[0][name].equal(twice[1][name]) for name in twice[0])


@here
@pytest.mark.parametrize("factor", [1, 2, pytest.param(6, id="brief")])
def test_evaluation_equals_the_plain_modules_in_float64(factor):
    block = Block(20, 5, 3, dropout=0.5).eval()
    x = torch.randn(3, 20, 6, 6)
    before = copy.deepcopy(dict(block.named_buffers()))
    with torch.no_grad():
        expected = copy.deepcopy(block).double()(x.double(), factor)
        block.to(DEVICE)
        found = fused.dense_block(x.to(DEVICE), block.layers, block.norm, factor)
    assert error(found, expected) < 1e-5
    assert all(tensor.cpu().equal(before[name]) for name, tensor in block.named_buffers())


@here
@pytest.mark.parametrize(("dropout", "factor"), [(0.0, 2), (0.2, 2), (0.0, 6)])
def test_in_bfloat16_the_error_is_that_of_the_plain_modules(dropout, factor):
    block = Block(16, 12, 4, dropout)
    for layer in block.layers:
        layer.conv.weight.data = layer.conv.weight.data.bfloat16().float()
    side = 6 // factor
    x, upstream = torch.randn(4, 16, 6, 6).bfloat16(), torch.randn(4, 64, side, side).bfloat16()
    exact, emulated = copy.deepcopy(block).double(), copy.deepcopy(block).double()
    expected = outcome(exact, lambda x: exact(x, factor), x.double(), upstream.double())
    plain = outcome(emulated, lambda x: as_autocast(emulated, x, factor), x.double(), upstream.double())
    block.to(DEVICE)
    for layer in block.layers:  # as in the engine's copy of a network
        layer.conv.bfloat16()
    compute = lambda x: fused.dense_block(x, block.layers, block.norm, factor)  # noqa: E731
    found = outcome(block, compute, x.to(DEVICE), upstream.to(DEVICE))
    assert found["out"].dtype == found["d x"].dtype == found["d layers.0.conv.weight"].dtype == torch.bfloat16
    assert found["d norm.weight"].dtype == torch.float32
    ours, theirs = errors_by_kind(found, expected), errors_by_kind(plain, expected)
    assert all(ours[kind] <= 1.5 * theirs[kind] for kind in KINDS), (ours, theirs)


@here
def test_the_gradient_behind_a_norm_has_no_mean_in_bfloat16_either():
    """If all pixels of an image have the same gradient, its rounding errors do not average out."""
    torch.manual_seed(3)
    block = Block(32, 12, 2)
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.bias.data = 2.5 * torch.randn_like(module.bias).sign()
    for layer in block.layers:
        layer.conv.bfloat16()
    block.to(DEVICE)
    x, upstream = (torch.randn(4, c, s, s, device=DEVICE).bfloat16() for c, s in ((32, 8), (56, 1)))
    gradient = outcome(block, lambda x: fused.dense_block(x, block.layers, block.norm, 8), x, upstream)["d x"].float()
    mean, size = gradient.mean((0, 2, 3)).abs(), gradient.square().mean((0, 2, 3)).sqrt()
    assert (mean < 0.002 * size).all()


@here
@pytest.mark.parametrize(
    ("dropout", "depth", "side"), [pytest.param(0.2, 7, 4, id="brief"), (0.0, 10, 8), (0.2, 10, 8)]
)
def test_a_network_trains_and_predicts_as_the_plain_one(dropout, depth, side):
    network = accelerated(dropout, depth).to(memory_format=torch.channels_last)
    plain = copy.deepcopy(network).cpu().double()
    images, labels = torch.randn(4, 3, side, side), torch.tensor([0, 1, 2, 3])
    assert fused.possible(network, images.to(DEVICE))

    def step(network, images):
        logits = network(images)
        nn.functional.cross_entropy(logits, labels.to(images.device)).backward()
        gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
        return {"logits": logits.detach(), **gradients, **{f"state {k}": v for k, v in network.state_dict().items()}}

    found, expected = step(network, images.to(DEVICE)), step(plain, images.double())
    errors = {name: error(found[name], expected[name]) for name in expected}
    assert max(errors.values()) < 1e-4, errors
    with torch.no_grad():
        images = torch.randn(3, 3, side, side)
        assert error(network.eval()(images.to(DEVICE)), plain.eval()(images.double())) < 1e-5
    plain.load_state_dict(network.state_dict())
    network.load_state_dict(plain.state_dict())


@here
@pytest.mark.parametrize("training", [True, False])
def test_parameters_need_not_be_contiguous(training):
    network = accelerated().train(training)
    images = torch.randn(4, 3, 8, 8, device=DEVICE)
    apart = {name: torch.stack([value, -value], -1)[..., 0] for name, value in network.state_dict().items()}
    plain = copy.deepcopy(network)
    with torch.no_grad():
        assert fused.possible(network, images)
        assert error(torch.func.functional_call(network, apart, images), plain(images)) < 1e-5
