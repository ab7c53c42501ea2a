"""When the kernels compute a DenseNet, and when its modules do. No kernel is launched here."""

import copy
import pickle
import subprocess
import sys
from collections import OrderedDict
from importlib.metadata import PackageNotFoundError
from types import MethodType, SimpleNamespace

import pytest
import torch
from dense_reference import small
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from snapens.lab import nets
from snapens.lab.engine.twin import Twin
from snapens.lab.nets.dense import densenet as module
from snapens.lab.nets.dense import fused
from snapens.lab.nets.dense.densenet import DenseNet, densenet
from snapens.lab.nets.dropout import keyed
from snapens.lab.paper import cells as paper

CPU = torch.device("cpu")
can_run = fused._can_run.__wrapped__


class LaunchError(Exception):
    """Raised instead of launching the kernels of a dense block."""


@pytest.fixture(autouse=True)
def _capable_device(monkeypatch):
    def launch(*arguments, **options):
        raise LaunchError

    monkeypatch.setattr(fused, "_can_run", lambda device: device == CPU)
    monkeypatch.setattr(module, "dense_block", launch)


def launches(network, images):
    try:
        network(images)
    except LaunchError:
        return True
    return False


@pytest.fixture
def network():
    network = small()
    assert nets.accelerate(network)
    return network


IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_a_network_is_plain_until_it_is_accelerated():
    network = small()
    assert not launches(network, IMAGES)
    assert nets.accelerate(network)
    assert launches(network, IMAGES)


def pickled(network):
    return pickle.loads(pickle.dumps(network))


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickled])
def test_a_copy_is_plain_until_it_is_accelerated_itself(network, copied):
    again = copied(network)
    assert not launches(again, IMAGES)
    assert nets.accelerate(again)
    assert launches(again, IMAGES)
    assert launches(network, IMAGES)


def test_only_a_densenet_that_the_kernels_support_is_accelerated(monkeypatch):
    unsupported = [
        nets.build("small", classes=5),
        type("Changed", (DenseNet,), {})(OrderedDict(small().named_children())),
        densenet(depth=7, growth=29, classes=5),
        densenet(depth=7, growth=12, classes=5, dropout=0.2),  # not keyed
    ]
    assert not any(nets.accelerate(network) or launches(network, IMAGES) for network in unsupported)
    assert nets.accelerate(keyed(densenet(depth=7, growth=28, classes=5, dropout=0.2)))
    assert nets.accelerate(densenet(depth=7, growth=12, classes=5))
    monkeypatch.setattr(DenseNet, "accelerable", False)
    assert not nets.accelerate(small())


def test_inputs_that_the_kernels_cannot_compute_are_left_to_the_modules(network):
    assert launches(network, IMAGES)
    assert launches(network, IMAGES[:2])
    assert not launches(network, IMAGES.repeat(1, 1, 2, 1))  # not square
    assert not fused.possible(network, IMAGES[:1])  # one image has no variance in training
    assert not fused.possible(network, IMAGES[0])
    assert not fused.possible(network, IMAGES.to("meta"))
    assert not fused.possible(network, IMAGES.half())
    assert not launches(network.double(), IMAGES.double())
    assert not launches(network.bfloat16(), IMAGES.bfloat16())  # norms in bfloat16


def test_gradients_in_eval_mode_are_left_to_the_modules(network):
    network.eval()
    assert not launches(network, IMAGES)
    with torch.no_grad():
        assert launches(network, IMAGES)
        assert launches(network, IMAGES[:1])
        assert not fused.possible(network, IMAGES[:0])
    network.requires_grad_(False)
    assert launches(network, IMAGES)
    assert not launches(network, IMAGES.clone().requires_grad_())


@pytest.mark.parametrize("training", [True, False])
def test_norms_in_another_mode_than_the_network_are_left_to_the_modules(network, training):
    """The engine switches only the norms to training to estimate their statistics."""
    network.train(training)
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.train(not training)
    with torch.no_grad():
        assert not launches(network, IMAGES)


@pytest.mark.filterwarnings("ignore")  # tracing is deprecated
def test_traces_and_transforms_see_the_modules(network, monkeypatch):
    network.eval().requires_grad_(False)
    plain = copy.deepcopy(network)
    assert torch.fx.symbolic_trace(network)(IMAGES).equal(plain(IMAGES))
    assert torch.jit.trace(network, IMAGES, check_trace=False)(IMAGES).equal(plain(IMAGES))
    assert torch.func.grad(lambda x: x * network(IMAGES).sum())(torch.ones(())).equal(plain(IMAGES).sum())
    with torch.autograd.forward_ad.dual_level():
        assert not launches(network, IMAGES)
    with FlopCounterMode(display=False):
        assert not launches(network, IMAGES)
    assert launches(network, IMAGES)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not launches(network, IMAGES)


@pytest.mark.parametrize("cell", ["densenet40-cifar100-single", "densenet40-cifar100-dropout"])
def test_the_kernels_compute_what_the_engine_makes_of_a_network(cell):
    original, copied = (nets.of(paper.find(cell).recipe, 100, {"channels": 3}).train() for _ in range(2))
    network = Twin(original, copied).network
    assert nets.accelerate(network)
    for block in nets.blocks(network):  # the engine compiles the blocks, for calls that the kernels cannot compute
        block.forward = MethodType(type(block).forward, block)
    with torch.autocast("cpu", torch.bfloat16):
        assert launches(network, torch.randn(4, 3, 32, 32))


def test_the_names_in_the_state_are_those_of_plain_modules(network):
    row = nn.Sequential(OrderedDict(stem=network.stem, blocks=network.blocks, head=network.head))
    assert list(network.state_dict()) == list(row.state_dict())
    assert {"stem.weight", "blocks.0.norm.weight", "blocks.2.conv.weight", "head.4.bias"} <= {*network.state_dict()}


def test_a_slice_runs_its_modules(network):
    assert network[:2](IMAGES).equal(network.blocks(network.stem(IMAGES)))


def test_triton_is_not_imported_without_a_gpu():
    code = (
        "import sys, torch; from snapens.lab.nets import accelerate, build; network = build('densenet40', classes=3)\n"
        "assert accelerate(network); network(torch.ones(2, 3, 8, 8)); assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
def test_which_gpus_and_tritons_can_run_the_kernels(monkeypatch, major, shared, triton, able):
    def version(name):
        if triton is None:
            raise PackageNotFoundError(name)
        return triton

    found = SimpleNamespace(major=major, shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(fused, "version", version)
    assert can_run(torch.device("cuda")) is able
    assert not can_run(CPU)
