"""Which tensors a snapshot stores."""

import copy

import pytest
import torch
from loop import SCHEDULE, sgd, train
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from snapens import CyclicCosine, Ensemble, SnapshotEnsembler, Snapshots, fresh_weights
from snapens.errors import ArgumentError
from snapens.weights import tensors


def test_keep_is_the_module_that_is_stored(net, make_net):
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, CyclicCosine(2, 1), keep=ema)
    for _ in range(2):
        net(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        ema.update_parameters(net)
        ensembler.step()
    kept = ensembler.snapshots.load(2)
    assert torch.equal(kept["head.weight"], ema.module.head.weight)
    assert not torch.equal(kept["head.weight"], net.head.weight)
    ema.module.eval()
    assert torch.allclose(
        Ensemble(ensembler.snapshots, make_net())(torch.ones(1, 4)), ema(torch.ones(1, 4)).softmax(-1)
    )


class ModelEma(nn.Module):
    """As timm's ModelEmaV2: it contains the averaged network and has no forward."""

    def __init__(self, model):
        super().__init__()
        self.module = copy.deepcopy(model)


def test_a_wrapper_of_the_averaged_module_is_rejected_at_the_start(net, make_net, tmp_path):
    ema = ModelEma(net)
    with pytest.raises(ArgumentError, match=r"keep must have .*, got 'module.*: pass .* itself: keep=wrapper\.module"):
        SnapshotEnsembler(net, sgd(net), CyclicCosine(2, 1), store=tmp_path, keep=ema)
    ensembler = SnapshotEnsembler(net, sgd(net), CyclicCosine(2, 1), store=tmp_path, keep=ema.module)
    train(net, ensembler.optimizer, ensembler, 2)
    x = torch.randn(5, 4)
    torch.testing.assert_close(Ensemble.load(tmp_path, make_net())(x), ema.module.eval()(x).softmax(-1))


def test_a_module_with_a_forward_of_its_own_may_contain_the_trained_one(net, tmp_path):
    class Standardised(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x / 2)

    whole = Standardised()
    ensembler = SnapshotEnsembler(net, sgd(net), CyclicCosine(2, 1), store=tmp_path, keep=whole)
    train(net, ensembler.optimizer, ensembler, 2)
    x = torch.randn(5, 4)
    torch.testing.assert_close(ensembler.ensemble()(x), whole.eval()(x).softmax(-1))


def head_of(model):
    return lambda: {name: value for name, value in model.named_parameters() if name.startswith("head.")}


def test_a_function_as_keep_stores_only_its_tensors(net, tmp_path):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path, keep=head_of(net))
    states = train(net, ensembler.optimizer, ensembler, 12)[2]
    assert Snapshots(tmp_path).load(8).keys() == {"head.weight", "head.bias"}
    body, x = {name: value.clone() for name, value in tensors(net).items()}, torch.randn(5, 4)
    expected = []
    for k in (3, 7, 11):  # the heads of the minima over the last body
        net.load_state_dict({**body, **{name: states[k][name] for name in ("head.weight", "head.bias")}})
        expected.append(net.eval()(x).double().softmax(-1))
    torch.testing.assert_close(ensembler.ensemble()(x).double(), sum(expected) / 3)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (lambda: [torch.ones(1)], "keep must return a dict from names to tensors, got list"),
        (lambda: {"head.bias": 1.0}, "keep must return a dict from names to tensors, got dict"),
        (lambda: {"bias": torch.ones(3)}, "by their names in the model, .* got 'bias'"),
        (lambda: {"head.bias": torch.ones(4)}, "shapes that they have there, got 'head.bias'"),
    ],
)
def test_a_function_as_keep_that_returns_something_else_is_rejected_at_the_start(net, tmp_path, keep, words):
    with pytest.raises(ArgumentError, match=words):
        SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path / "run", keep=keep)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("resident", [True, False])
def test_a_function_as_keep_may_name_tied_weights_once(resident):
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    net[1].weight = net[0].weight
    ensembler = SnapshotEnsembler(net, sgd(net), CyclicCosine(4, 2), keep=lambda: dict(net.named_parameters()))
    x, expected = torch.arange(5), []
    for _ in range(4):
        ensembler.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), x).backward()
        ensembler.optimizer.step()
        if ensembler.step() is not None:
            expected.append(net(x).detach().softmax(-1))
    torch.testing.assert_close(ensembler.ensemble(resident=resident)(x), torch.stack(expected).mean(0))


def test_fresh_weights_work_with_a_function_as_keep(make_net):
    net = make_net()
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, keep=head_of(net), on_restart=fresh_weights(make_net))
    train(net, ensembler.optimizer, ensembler, 12)
    assert ensembler.ensemble().steps == (4, 8, 12)


class Quantised(nn.Linear):
    """Adds its quantisation state to the state_dict, as bitsandbytes.nn.Linear4bit does."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight.absmax"] = torch.ones(1)


@pytest.mark.parametrize("resident", [True, False])
def test_a_base_with_other_entries_in_its_state_dict_needs_a_function_as_keep(resident):
    net = nn.Sequential(Quantised(4, 4).requires_grad_(False), nn.Linear(4, 3))
    optimizer, schedule = sgd(net[1]), CyclicCosine(4, 2)
    with pytest.raises(ArgumentError, match=r"got '0\.weight\.absmax', which extra state or a hook added"):
        SnapshotEnsembler(net, optimizer, schedule)
    adapters = lambda: {name: value for name, value in net.named_parameters() if value.requires_grad}  # noqa: E731
    ensembler = SnapshotEnsembler(net, optimizer, schedule, keep=adapters)
    x, expected = torch.randn(5, 4), []
    for _ in range(4):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        if ensembler.step() is not None:
            expected.append(net(x).detach().softmax(-1))
    torch.testing.assert_close(ensembler.ensemble(resident=resident)(x), torch.stack(expected).mean(0))
    with pytest.raises(ArgumentError, match=r"got '0\.weight\.absmax'"):
        ensembler.ensemble(strict=True)
