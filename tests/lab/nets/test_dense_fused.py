"""The fused dense block against the plain modules in float64: on a GPU as compiled, elsewhere in Triton's interpreter.

The interpreter must be asked for before Triton is first imported, so these tests run in a process of their own.
"""

import copy
import os
import subprocess
import sys
from collections import OrderedDict
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import MethodType, SimpleNamespace

import pytest
import torch
from torch import nn, relu
from torch.nn.functional import avg_pool2d, conv2d
from torch.nn.utils import prune
from torch.utils.flop_counter import FlopCounterMode

from snapens.lab import nets
from snapens.lab.engine.twin import Twin
from snapens.lab.nets.dense import fused
from snapens.lab.nets.dense import passes as dense_passes
from snapens.lab.nets.dense.densenet import Layer, densenet
from snapens.lab.nets.dropout import KeyedDropout, keyed
from snapens.lab.paper import cells as paper

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
here = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a CUDA device")
can_run = fused._can_run
if INTERPRETED:
    from interpreter import repair

    repair()
    fused._can_run = lambda device: True
# the interpreter computes with what it will throw away
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.skipif(INTERPRETED, reason="this is the process that it starts")
def test_all_of_this_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__))]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(autouse=True)
def _without_tf32():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """What is not written is NaN."""
    for owner, name in [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]:
        plain = getattr(owner, name)

        def poisoned(*arguments, plain=plain, **options):
            found = plain(*arguments, **options)
            return found.fill_(float("nan")) if found.is_floating_point() else found

        monkeypatch.setattr(owner, name, poisoned)


class Block(nn.Module):
    """A dense block and what closes it, by the plain modules."""

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


def outcome(block, compute, x, upstream):
    """Output, gradients and buffers of a training step, by name."""
    x = x.clone().requires_grad_()
    out = compute(x)
    out.backward(upstream.to(out))
    gradients = {f"d {name}": parameter.grad for name, parameter in block.named_parameters()}
    return {"out": out.detach(), "d x": x.grad, **gradients, **dict(block.named_buffers())}


def error(found, expected):
    """Relative, of a whole tensor."""
    assert found.shape == expected.shape
    found, expected = found.double().cpu(), expected.double().cpu()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-300))


SHAPES = [
    # images, inputs, growth, layers, side, factor, dropout
    (2, 16, 12, 3, 8, 2, 0.0),
    (3, 16, 24, 2, 4, 4, 0.0),
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
    """With forty processors there are more ranges than are added up at a time, and with few partials several rounds."""
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


KINDS = ["out", "d x", "conv.weight", "norm.weight", "norm.bias", "running_mean", "running_var"]


def errors_by_kind(found, expected):
    """Of all tensors of a kind together, without the count of batches."""
    errors = {name: error(found[name], expected[name]) for name in expected}
    return {kind: sum(errors[name] ** 2 for name in errors if name.endswith(kind)) ** 0.5 for kind in KINDS}


FULL = [(64, 32, 24), (64, 16, 24), (64, 8, 24), (64, 32, 12), (64, 8, 12)]  # the tiles that small shapes do not choose


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
    """No activation is so near to zero that rounding decides on which side of the ReLU it is."""
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
def test_what_is_no_number_stays_none(where):
    """A run that has diverged must not look healthy."""
    network, images = small().to(DEVICE), torch.randn(4, 3, 8, 8, device=DEVICE)
    if where == "image":
        images[0, 0, 0, 0] = float("nan")
    else:
        network.get_parameter(f"blocks.1.{where}").data.view(-1)[0] = float("nan")
    assert network(images).isnan().all(dim=1).any()


@here
def test_a_key_that_changes_before_the_backward_pass_is_refused():
    block = Block(16, 5, 2, dropout=0.5).to(DEVICE)
    out = fused.dense_block(torch.randn(2, 16, 4, 4, device=DEVICE), block.layers, block.norm, 1)
    block.layers[0].dropout.key += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


class Severed(torch.autograd.Function):
    """Passes nothing back."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


@here
def test_where_nothing_depends_on_the_output_there_are_no_gradients():
    block, x = Block(16, 5, 2).to(DEVICE), torch.randn(2, 16, 4, 4, device=DEVICE, requires_grad=True)
    (Severed.apply(fused.dense_block(x, block.layers, block.norm, 1)).sum() + x.sum()).backward()
    assert x.grad.eq(1).all()
    assert all(parameter.grad is None for parameter in block.parameters())


@here
def test_the_same_bits_come_twice():
    block = Block(20, 12, 2, dropout=0.2).to(DEVICE)
    x, upstream = torch.randn(3, 20, 6, 6, device=DEVICE), torch.randn(3, 44, 3, 3, device=DEVICE)
    twice = []
    for _ in range(2):
        again = copy.deepcopy(block)
        twice.append(outcome(again, lambda x: fused.dense_block(x, again.layers, again.norm, 2), x, upstream))  # noqa: B023
    assert all(twice[0][name].equal(twice[1][name]) for name in twice[0])


@here
@pytest.mark.parametrize("factor", [1, 2, 6])
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


class Rounded(torch.autograd.Function):
    """To bfloat16 and back, the gradient too."""

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
    for layer in block.layers:  # as in the twin of a network
        layer.conv.bfloat16()
    compute = lambda x: fused.dense_block(x, block.layers, block.norm, factor)  # noqa: E731
    found = outcome(block, compute, x.to(DEVICE), upstream.to(DEVICE))
    assert found["out"].dtype == found["d x"].dtype == found["d layers.0.conv.weight"].dtype == torch.bfloat16
    assert found["d norm.weight"].dtype == torch.float32
    ours, theirs = errors_by_kind(found, expected), errors_by_kind(plain, expected)
    assert all(ours[kind] <= 1.5 * theirs[kind] for kind in KINDS), (ours, theirs)


@here
def test_what_comes_back_through_norms_has_no_mean_in_bfloat16_either():
    """Where an image has one gradient for all pixels, rounding it does not average out."""
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


def small(dropout=0.0):
    torch.manual_seed(3)
    return keyed(densenet(depth=10, growth=12, classes=5, dropout=dropout))


@here
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_network_trains_and_predicts_as_the_plain_one(dropout):
    network = small(dropout)
    plain = copy.deepcopy(network).double()
    plain.fused = False
    images, labels = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    network.to(DEVICE, memory_format=torch.channels_last)
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
        images = torch.randn(3, 3, 8, 8)
        assert error(network.eval()(images.to(DEVICE)), plain.eval()(images.double())) < 1e-5
    plain.load_state_dict(network.state_dict())
    network.load_state_dict(plain.state_dict())


def test_the_names_in_the_state_are_those_of_the_modules_in_a_row():
    network = small()
    row = nn.Sequential(OrderedDict(stem=network.stem, blocks=network.blocks, head=network.head))
    assert list(network.state_dict()) == list(row.state_dict())
    assert {"stem.weight", "blocks.0.norm.weight", "blocks.2.conv.weight", "head.4.bias"} <= {*network.state_dict()}


@here
def test_the_plain_way_is_taken_where_the_kernels_would_be_wrong():
    images = torch.randn(4, 3, 8, 8, device=DEVICE)
    network = small().to(DEVICE)
    assert fused.possible(network, images)
    assert not fused.possible(network, images[:1])
    assert not fused.possible(network, images[..., :4])
    assert not fused.possible(network, images.double())
    assert not fused.possible(small().to(DEVICE).bfloat16(), images.bfloat16())
    assert not fused.possible(network.eval(), images)
    with torch.no_grad():
        assert fused.possible(network, images)
        assert not fused.possible(network, images[:0])
        network.head[0].train()  # as when statistics are estimated
        assert not fused.possible(network, images)
    network.train()
    network.head[0].momentum = None
    assert not fused.possible(network, images)
    assert not fused.possible(densenet(depth=10, growth=12, classes=5, dropout=0.2), images)  # not keyed
    assert not fused.possible(densenet(depth=7, growth=32, classes=5), images)
    network, found = small().to(DEVICE), []
    torch.func.grad(lambda x: (found.append(fused.possible(network, images)), x)[1])(torch.ones(()))
    assert found == [False]
    with torch.autograd.forward_ad.dual_level():
        assert not fused.possible(network, images)
    with FlopCounterMode(display=False):
        assert not fused.possible(network, images)
    assert fused.possible(network, images)
    network.eval().requires_grad_(False)
    assert fused.possible(network, images)
    assert not fused.possible(network, images.clone().requires_grad_())
    network.fused = False
    assert network(images).equal(nn.Sequential(network.stem, network.blocks, network.head)(images))


@here
@pytest.mark.parametrize("cell", ["densenet40-cifar100-single", "densenet40-cifar100-dropout"])
def test_what_the_engine_makes_of_a_network_is_for_the_kernels(cell):
    original, copied = (nets.of(paper.find(cell).recipe, 100, 3).to(DEVICE).train() for _ in range(2))
    network = Twin(original, copied).network
    for block in nets.blocks(network):  # as where the engine compiles them, for what the kernels do not know
        block.forward = MethodType(type(block).forward, block)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert fused.possible(network, torch.randn(4, 3, 32, 32, device=DEVICE))


@here
def test_dropout_in_a_transition_that_trains_alone():
    network = small(0.5).to(DEVICE).eval()
    network.blocks[2].dropout.train()
    images = torch.randn(4, 3, 8, 8, device=DEVICE)
    with torch.no_grad():
        assert fused.possible(network, images)
        found = network(images)
        network.fused = False
        assert error(found, network(images)) < 1e-5


@here
@pytest.mark.parametrize("training", [True, False])
def test_parameters_that_lie_apart(training):
    network = small().to(DEVICE).train(training)
    images = torch.randn(4, 3, 8, 8, device=DEVICE)
    apart = {name: torch.stack([value, -value], -1)[..., 0] for name, value in network.state_dict().items()}
    plain = copy.deepcopy(network)
    plain.fused = False
    with torch.no_grad():
        assert fused.possible(network, images)
        assert error(torch.func.functional_call(network, apart, images), plain(images)) < 1e-5


def test_a_symbolic_trace_and_a_slice_are_of_the_modules():
    network, images = small().eval(), torch.randn(2, 3, 8, 8)
    assert torch.fx.symbolic_trace(network)(images).equal(network(images))
    assert network[:2](images).equal(network.blocks(network.stem(images)))


@pytest.mark.skipif(INTERPRETED, reason="asks for the plain process")
def test_without_a_gpu_triton_is_not_even_imported():
    code = (
        "import sys, torch; from snapens.lab.nets import build; network = build('densenet40', classes=3)\n"
        "network(torch.ones(2, 3, 8, 8)); assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def circular(network):
    network.blocks[0].conv.padding_mode = "circular"


def biased(network):
    conv = network.blocks[0].conv
    conv.bias = nn.Parameter(torch.ones(conv.out_channels))


def max_pooling(network):
    network.head[2] = nn.AdaptiveMaxPool2d(1)


def longer_head(network):
    network.head.append(nn.LogSoftmax(1))


def no_head(network):
    network.head = nn.Identity()


def wrapped(network):
    network.blocks[0] = nn.Sequential(network.blocks[0])


def whole_channels_dropped(network):
    network.blocks[0].dropout = nn.Dropout2d(0.5)


def other_norm(network):
    network.blocks[0].norm = nn.InstanceNorm2d(16, affine=True)


def no_norm(network):
    network.blocks[0].norm = nn.Identity()


def two_transitions(network):
    network.blocks.insert(3, network.blocks[2])


def strided_transition(network):
    network.blocks[2].conv.stride = (2, 2)


def no_dropout(network):
    network.blocks[2].dropout = nn.Identity()


def longer(network):
    network.append(nn.Softmax(1))


def other_stem(network):
    network.stem = nn.Sequential(network.stem)


def stretched(network):
    network.stem.stride = (2, 1)


def untracked(network):
    network.blocks[1].norm.track_running_stats = False


def unshifted(network):
    network.blocks[1].norm.bias = None


def narrow_norm(network):
    network.blocks[1].norm = nn.BatchNorm2d(16)


def narrow_transition(network):
    network.blocks[2].conv = nn.Conv2d(16, 40, 1, bias=False)


def watched(network):
    network.blocks[1].register_forward_hook(lambda *_: None)


def normalised_weights(network):
    nn.utils.weight_norm(network.blocks[1].conv)


def pruned(network):
    prune.l1_unstructured(network.blocks[2].conv, "weight", 0.5)


def compiled(network):
    network.blocks = torch.compile(network.blocks)


@here
@pytest.mark.parametrize(
    "change",
    [circular, biased, max_pooling, longer_head, no_head, wrapped, whole_channels_dropped, other_norm,
     no_norm, two_transitions, strided_transition, no_dropout, longer, other_stem, stretched, untracked, unshifted,
     narrow_norm, narrow_transition, watched, normalised_weights, pruned, compiled],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")  # some of these are deprecated
def test_a_network_that_was_changed_is_left_to_its_modules(change):
    network = densenet(depth=10, growth=12, classes=5)
    images = torch.randn(4, 3, 16, 16, device=DEVICE)
    assert fused.possible(network.to(DEVICE), images)
    change(network.cpu())
    assert not fused.possible(network.to(DEVICE), images)


@here
@pytest.mark.filterwarnings("ignore")  # tracing is deprecated, and says so
def test_a_trace_is_one_of_the_modules():
    network, images = small().to(DEVICE).eval(), torch.randn(2, 3, 8, 8, device=DEVICE)
    with torch.no_grad():
        traced = torch.jit.trace(network, images)
        network.fused = False
        assert traced(images).equal(network(images))


@pytest.mark.parametrize(
    ("major", "shared", "triton", "able"),
    [
        (9, 232_448, "3.5.0", True),
        (10, 232_448, "3.10.1", True),
        (8, 232_448, "3.5.0", False),
        (9, 101_376, "3.5.0", False),
        (9, 232_448, "3.4.1", False),
        (9, 232_448, None, False),
    ],
)
def test_which_gpus_and_tritons_will_do(monkeypatch, major, shared, triton, able):
    def version(name):
        if triton is None:
            raise PackageNotFoundError(name)
        return triton

    found = SimpleNamespace(major=major, shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(fused, "version", version)
    assert can_run.__wrapped__(torch.device("cuda")) is able
    assert not can_run.__wrapped__(torch.device("cpu"))
