"""Averages of weights, with errors that follow by hand, and BatchNorm statistics computed in float64."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from snapens import Snapshots
from snapens.combine.soup import Soups, average
from snapens.errors import ArgumentError, BarrierError, MismatchError
from snapens.weights import tensors


def state(*margins):
    """A linear model of one-hot examples that prefers the class 0, which is right, by these margins."""
    return {"weight": torch.tensor([margins, [0.0] * len(margins)])}


# errors alone: 3/4, 1/4, 2/4, 2/4; a margin of 0 is right, because the first class wins
STATES = [state(-9, -9, -9, 9), state(3, 3, 3, -1), state(-20, 1, 1, -1), state(-1, -1, 1, 2)]
HELD_OUT = [(torch.eye(4)[:3], torch.zeros(3, dtype=torch.long)), (torch.eye(4)[3:], torch.zeros(1, dtype=torch.long))]


@pytest.fixture
def soups():
    return Soups(nn.Linear(4, 2, bias=False), STATES, held_out=HELD_OUT)


def test_errors_and_barriers_are_those_of_the_mean_weights(soups):
    assert [soups.error(k) for k in range(4)] == [0.75, 0.25, 0.5, 0.5]
    assert soups.error(1, 3) == soups.error(3, 1) == 0  # the margins 2, 2, 4, 1
    assert soups.barrier(1, 3) == 0 - (0.25 + 0.5) / 2
    assert soups.barrier(0, 1) == 0.75 - (0.75 + 0.25) / 2  # the margins -6, -6, -6, 8
    assert soups.barrier(2, 2) == 0


def test_the_uniform_soup_averages_all_snapshots_if_no_barrier_to_the_last_is_too_high(soups):
    found = soups.uniform(tolerance=0.125)
    assert found.members == (0, 1, 2, 3)
    assert found.model.weight[0].tolist() == [-27 / 4, -6 / 4, -4 / 4, 9 / 4]
    assert found.error == 0.75
    assert found.barriers == {0: 0.125, 1: -0.375, 2: -0.25}
    with pytest.raises(BarrierError, match=r"barrier of at most 12\.00% .* got 12\.50% from 0 to 3: average their"):
        soups.uniform(tolerance=0.12)


def test_the_greedy_soup_adds_what_does_not_raise_the_error_of_the_best(soups):
    found = soups.greedy(tolerance=0.2)
    assert found.members == (1, 3)
    assert found.model.weight[0].tolist() == [1, 1, 2, 0.5]
    assert found.error == 0
    assert found.barriers == {2: 0.125, 3: -0.375, 0: 0.25}


def test_the_greedy_soup_leaves_out_snapshots_behind_a_barrier_but_not_all_of_them(soups):
    assert soups.greedy(tolerance=-0.3).members == (1, 3)
    with pytest.raises(BarrierError, match=r"got 12\.50% from 2, -37\.50% from 3, 25\.00% from 0 to 1"):
        soups.greedy(tolerance=-0.4)


def test_one_snapshot_is_a_soup_of_itself():
    soups = Soups(nn.Linear(4, 2, bias=False), STATES[1:2], held_out=HELD_OUT)
    for found in (soups.uniform(), soups.greedy()):
        assert (found.members, found.error, found.barriers) == ((0,), 0.25, {})
        assert torch.equal(found.model.weight, STATES[1]["weight"])


def test_networks_whose_hidden_units_are_permuted_are_separated_by_a_barrier():
    """Both compute the same function; the mean of their weights does not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(400, 8)
    with torch.no_grad():
        labels = net(x).argmax(-1)
    order = torch.arange(15, -1, -1)
    one, other = net.state_dict(), copy.deepcopy(net).state_dict()
    other["0.weight"], other["0.bias"] = one["0.weight"][order], one["0.bias"][order]
    other["2.weight"] = one["2.weight"][:, order]
    soups = Soups(net, [one, other], held_out=[(x, labels)])
    assert (soups.error(0), soups.error(1)) == (0, 0)
    for make in (soups.uniform, soups.greedy):
        with pytest.raises(BarrierError, match="must be connected by lines"):
            make()


def trained(make_net, count):
    """Snapshots of a network with BatchNorm, a buffer of counts and a tied weight, all different."""
    snapshots, net = Snapshots(), make_net()
    for step in range(1, count + 1):
        with torch.no_grad():
            net.train()(torch.randn(16, 4))
            for parameter in net.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        snapshots.commit(4 * step, tensors(net))
    return snapshots


def test_the_batchnorm_statistics_of_a_soup_are_averages_over_the_training_batches(make_net):
    snapshots, model = trained(make_net, 3), make_net()
    before = copy.deepcopy(model.state_dict())
    training = [(torch.randn(32, 4), None) for _ in range(3)]
    x = torch.randn(50, 4)
    soups = Soups(model, snapshots, training=training, held_out=[(x, torch.zeros(50, dtype=torch.long))])
    found = soups.uniform(tolerance=1.0)

    expected = make_net()
    states = [snapshots.load(step) for step in (4, 8, 12)]
    values = {name: torch.stack([one[name] for one in states]).double().mean(0) for name in states[0]}
    expected.load_state_dict(values)
    with torch.no_grad():
        inside = [expected.module(batch).double() for batch, _ in training]
        expected.norm.running_mean.copy_(torch.stack([batch.mean(0) for batch in inside]).mean(0))
        expected.norm.running_var.copy_(torch.stack([batch.var(0) for batch in inside]).mean(0))
    assert found.members == (4, 8, 12)
    for name, tensor in expected.state_dict().items():
        if name != "norm.num_batches_tracked":
            assert torch.allclose(found.model.state_dict()[name], tensor, atol=1e-6), name
    assert found.error == pytest.approx((expected.eval()(x).argmax(-1) != 0).float().mean().item())
    assert not found.model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_the_error_of_a_soup_is_that_of_its_model_if_each_pass_reads_other_training_batches(make_net):
    snapshots, data = trained(make_net, 3), TensorDataset(torch.randn(400, 4))
    training = DataLoader(data, batch_size=4, sampler=RandomSampler(data, num_samples=8))
    x, labels = torch.randn(2000, 4), torch.arange(2000) % 3
    soups = Soups(make_net(), snapshots, training=training, held_out=[(x, labels)])
    for found in (soups.uniform(tolerance=1), soups.uniform(tolerance=1)):
        assert found.error == (found.model(x).argmax(-1) != labels).double().mean().item()


def test_a_single_snapshot_keeps_its_own_batchnorm_statistics(make_net):
    snapshots = trained(make_net, 2)
    own = make_net()
    own.load_state_dict(snapshots.load(4))
    x = torch.randn(64, 4)
    labels = own.eval()(x).argmax(-1)  # so that its own error is 0
    strange = [(100 + 50 * torch.randn(32, 4), None)]  # statistics of these would change its answers
    assert Soups(make_net(), snapshots, training=strange, held_out=[(x, labels)]).error(4) == 0


def test_a_soup_is_not_changed_by_a_later_one(soups):
    found = soups.greedy(tolerance=0.2)
    soups.uniform(tolerance=1.0)
    assert found.model.weight[0].tolist() == [1, 1, 2, 0.5]


def test_a_model_may_change_its_input_in_place():
    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(2.0))

    states = [{"weight": torch.randn(3, 4), "bias": torch.randn(3)} for _ in range(3)]
    x, labels = torch.randn(50, 4), torch.arange(50) % 3
    expected = Soups(nn.Linear(4, 3), states, held_out=[(2 * x, labels)])
    found = Soups(Doubled(4, 3), states, held_out=[(x.clone(), labels)])
    for members in ((0,), (1,), (2,), (0, 1), (0, 2)):
        assert found.error(*members) == expected.error(*members)


def test_the_snapshots_may_be_those_of_a_folder(tmp_path):
    store = Snapshots(tmp_path)
    store.open_to_write()
    for step, state in enumerate(STATES, 4):
        store.commit(step, state)
    store.close()
    found = of(str(tmp_path))
    assert found.members == (4, 5, 6, 7)
    assert [found.error(step) for step in found.members] == [of(STATES).error(k) for k in range(4)]


def test_inputs_and_labels_can_be_selected_from_a_batch():
    batch = {"x": torch.eye(4), "y": torch.zeros(4, dtype=torch.long)}
    model = nn.Linear(4, 2, bias=False)
    soups = Soups(model, STATES, held_out=[batch], inputs=lambda b: b["x"], targets=lambda b: b["y"])
    assert soups.error(0) == 0.75


def test_an_average_keeps_the_type_of_each_tensor():
    found = average([{"w": torch.tensor([1.0], dtype=dtype)} for dtype in (torch.float32, torch.bfloat16)])
    assert found["w"].dtype == torch.bfloat16


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 4))

    def forward(self, x):
        return {"one": x @ self.weight.T, "two": x}


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: average([]), ArgumentError, "states must contain at least one state dict, got none"),
        (lambda: average([STATES[0], {"w": torch.ones(1)}]), MismatchError, "got extra w; missing weight"),
        (lambda: of([]), ArgumentError, "snapshots must contain at least one snapshot or state dict"),
        (lambda: of(Snapshots()), ArgumentError, "snapshots must contain at least one snapshot or state dict"),
        (lambda: of(STATES, held_out=iter(HELD_OUT)), ArgumentError, "held_out must be batches that can be read"),
        (lambda: of(STATES, training=iter(HELD_OUT)), ArgumentError, "training must be batches that can be read"),
        (lambda: of(STATES, held_out=torch.eye(4)), ArgumentError, "got Tensor: pass a DataLoader or a list"),
        (lambda: of(STATES, held_out=[]).error(0), ArgumentError, "held_out must have at least one example"),
        (
            lambda: of(STATES, held_out=[(torch.eye(4), torch.zeros(3))]).error(0),
            ArgumentError,
            "held_out must have one label per output, got labels of shape (3,) for (4,)",
        ),
        (lambda: of(STATES, held_out=[torch.eye(4)]).error(0), ArgumentError, "batch must contain labels"),
        (lambda: of([state(1, 2)]).error(0), MismatchError, "weight has shape (2, 2), the model's is (2, 4)"),
        (lambda: of(STATES, model=Pair()).error(0), ArgumentError, "scores per example for a soup, got a mapping"),
        (
            lambda: of([nn.Linear(4, 1).state_dict()], model=nn.Linear(4, 1)).error(0),
            ArgumentError,
            "model must return one tensor with two or more scores per example for a soup, got shape (3, 1)",
        ),
        (
            lambda: of([nn.BatchNorm1d(4).state_dict()] * 2, model=nn.BatchNorm1d(4)).error(0, 1),
            ArgumentError,
            "training must have at least one batch, because the model has BatchNorm layers",
        ),
    ],
)
def test_bad_arguments_are_rejected(call, kind, words):
    with pytest.raises(kind) as caught:
        call()
    assert words in str(caught.value)


def of(states, model=None, **options):
    return Soups(model or nn.Linear(4, 2, bias=False), states, **({"held_out": HELD_OUT} | options))
