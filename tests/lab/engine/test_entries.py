"""Optimizers, objectives, transforms and averages in a real step, each against torch's own in a plain loop."""

import copy

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from torch.nn.functional import log_softmax
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from snapens.errors import ArgumentError, MismatchError
from snapens.lab import nets
from snapens.lab.engine.ascent import Ascent
from snapens.lab.engine.feed import Feed
from snapens.lab.engine.pack import prepare, train
from snapens.lab.engine.step import TrainingStep
from snapens.lab.engine.twin import Twin
from snapens.lab.recipe import SAM, Cutout, Mirror
from snapens.lab.recipe.batch import Batch
from snapens.lab.records.run import Run
from snapens.weights import tensors

CPU = torch.device("cpu")


class Tied(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.first, self.again = nn.Linear(192, 192, bias=False), nn.Linear(192, 192, bias=False)
        self.again.weight = self.first.weight
        self.head = nn.Linear(192, classes)

    def forward(self, x):
        return self.head(self.again(self.first(x.flatten(1)) / 10))


def tied(*, classes, channels):
    return Tied(classes)


class Constant(nn.Module):
    """Its outputs do not depend on the inputs; at its initial weights, the gradient is zero."""

    def __init__(self, classes):
        super().__init__()
        self.unused, self.row, self.column = (nn.Parameter(torch.zeros(size, 1)) for size in (3, classes, 1))

    def forward(self, x):
        return x.new_zeros(len(x), 1) + (self.row @ self.column).T


def constant(*, classes, channels):
    return Constant(classes)


def made(recipe, data=None):
    data = data or tiny.data()
    return TrainingStep(recipe, data.place(CPU, recipe.dataset.padding), recipe.schedule(len(data.train)))


def reference(recipe, groups, optimizer, loss, after=lambda network: None):
    """Twenty steps of a plain loop; the network and the losses."""
    data = tiny.data()
    feed = Feed(data.place(CPU), (Mirror(),), recipe.seed, 8)
    network = nets.of(recipe, 4, {"channels": 3})
    optimizer = optimizer(groups(network))
    schedule, losses = recipe.schedule(40), []
    peaks = [group["lr"] for group in optimizer.param_groups]
    for step in range(20):
        feed.prepare(step)
        batch = feed.read(torch.tensor([step]))
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * schedule(step)
        found = loss(network(batch.inputs), batch.targets)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        after(network)
        losses.append(found.item())
    return network, losses


def assert_same(step, network, losses):
    for completed in range(20):
        step(completed)
    assert step.losses.tolist() == pytest.approx(losses, rel=1e-3)
    for name, tensor in tensors(step.network).items():
        assert torch.allclose(tensor, tensors(network)[name], rtol=1e-3, atol=1e-4), name


def every(network):
    return network.parameters()


def by_hand(logits, targets, smoothing=0.0):
    """Cross-entropy with targets of which a share is spread over all classes."""
    spread = torch.full_like(logits, smoothing / logits.shape[1])
    spread[torch.arange(len(targets)), targets] += 1 - smoothing
    return -(spread * log_softmax(logits.float(), 1)).sum(1).mean()


def test_adamw_is_torchs():
    recipe = tiny.recipe(optimizer="adamw", lr=0.01, weight_decay=0.1)
    adamw = lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)  # noqa: E731
    assert_same(made(recipe), *reference(recipe, every, adamw, by_hand))


def test_label_smoothing_spreads_a_share_of_each_target():
    recipe = tiny.recipe(label_smoothing=0.2, momentum=0.5)
    sgd = lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.5, nesterov=True, weight_decay=1e-4)  # noqa: E731
    smoothed = lambda logits, targets: by_hand(logits, targets, 0.2)  # noqa: E731
    assert_same(made(recipe), *reference(recipe, every, sgd, smoothed))


def test_weight_decay_skips_norms_and_biases_if_only_weights_decay():
    recipe = tiny.recipe(decays="weights", weight_decay=0.1)

    def groups(network):
        weights = [network.conv.weight, network.head.weight]
        others = [network.norm.weight, network.norm.bias, network.head.bias]
        return [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]

    sgd = lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)  # noqa: E731
    step = made(recipe)
    assert_same(step, *reference(recipe, groups, sgd, by_hand))
    assert [len(group["params"]) for group in step.optimizer.param_groups] == [2, 3]


def test_the_kept_average_is_torchs_exponential_moving_average():
    recipe = tiny.recipe(ema=0.8)
    averaged = []

    def after(network):
        if not averaged:
            start = nets.of(recipe, 4, {"channels": 3})
            averaged.append(AveragedModel(start, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True))
            averaged[0].n_averaged.fill_(1)  # it began with the initial weights
        averaged[0].update_parameters(network)

    sgd = lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)  # noqa: E731
    step = made(recipe)
    assert_same(step, *reference(recipe, every, sgd, by_hand, after))
    for name, tensor in tensors(step.kept).items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, averaged[0].module.state_dict()[name], rtol=1e-3, atol=1e-4), name
    assert not torch.allclose(step.kept.conv.weight, step.network.conv.weight, rtol=1e-3)
    assert step.kept.norm.num_batches_tracked.item() == 20


@pytest.mark.parametrize(
    ("every", "moves", "rounded"),
    [(1, "all", False), (4, "all", False), (4, "all", True), (4, "norms", False), (4, "norms", True)],
)
def test_sam_takes_the_gradient_at_the_weights_uphill(every, moves, rounded, monkeypatch):
    """Also with the rounded weights of a GPU, which must follow the move."""

    def precision(device):
        return torch.autocast(device.type, torch.bfloat16, enabled=rounded)

    recipe = tiny.recipe(sam=0.5, sam_every=every, sam_moves=moves)
    feed = Feed(tiny.data().place(CPU), (Mirror(),), recipe.seed, 8)
    network, schedule, losses = nets.of(recipe, 4, {"channels": 3}), recipe.schedule(40), []
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    for number in range(20):
        feed.prepare(number)
        batch = feed.read(torch.tensor([number]))
        optimizer.param_groups[0]["lr"] = 0.05 * schedule(number)
        statistics = {name: buffer.clone() for name, buffer in network.named_buffers()}
        with precision(CPU):
            found = by_hand(network(batch.inputs[::every]), batch.targets[::every])
        moved = [name for name, _ in network.named_parameters() if moves == "all" or name.startswith("norm")]
        gradients = torch.autograd.grad(found, [network.get_parameter(name) for name in moved])
        length = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        network.load_state_dict(statistics, strict=False)  # only the pass with the whole batch changes them
        uphill = copy.deepcopy(network)
        with torch.no_grad():
            for name, gradient in zip(moved, gradients, strict=True):
                uphill.get_parameter(name).add_(0.5 * gradient / length)
        with precision(CPU):
            found = by_hand(uphill(batch.inputs), batch.targets)
        for parameter, other in zip(network.parameters(), uphill.parameters(), strict=True):
            parameter.grad = torch.autograd.grad(found, other, retain_graph=True)[0]
        network.load_state_dict(dict(uphill.named_buffers()), strict=False)
        optimizer.step()
        losses.append(found.item())
    step = made(recipe)
    if rounded:
        monkeypatch.setattr("snapens.lab.engine.step.precision", precision)
        step._twin = Twin(step.network, step._network_on_device())
        step._live = step._twin.network
    assert_same(step, network, losses)
    assert step.network.norm.num_batches_tracked.item() == 20


def test_sam_does_not_move_weights_without_a_gradient():
    step = made(tiny.recipe(network="test_entries:constant", sam=0.5))
    step(0)
    assert not any(tensor.any() for tensor in tensors(step.network).values())  # no gradient at all: nor NaN


def test_sam_on_norms_moves_nothing_else_and_a_shared_parameter_once():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.PReLU(), nn.Linear(4, 4), nn.LayerNorm(4))
    network[4].weight = network[1].weight
    before, batch = copy.deepcopy(network), Batch(torch.randn(8, 4), torch.zeros(8, 2))
    with Ascent(network, SAM(0.5, 1, "norms")).uphill(
        lambda part: network(part.inputs).square().sum().backward(), batch
    ):
        moved = {name: (one - before.get_parameter(name)).detach() for name, one in network.named_parameters()}
        assert {name for name, change in moved.items() if change.any()} == {"1.weight", "1.bias", "4.bias"}
        assert float(torch.cat(list(map(torch.flatten, moved.values()))).norm()) == pytest.approx(0.5, rel=1e-5)
    assert all(one.equal(before.get_parameter(name)) for name, one in network.named_parameters())


def test_sam_needs_something_to_move():
    with pytest.raises(ArgumentError, match="sam_moves must be 'all' for a network without normalisation layers"):
        made(tiny.recipe(network="tiny:head", sam=0.5, sam_moves="norms"))


def test_a_tied_weight_is_averaged_once():
    step = made(tiny.recipe(network="test_entries:tied", ema=0.5))
    before = step.network.again.weight.detach().clone()
    step(0)
    expected = (before + step.network.again.weight) / 2
    assert torch.allclose(step.kept.again.weight, expected, atol=1e-7)
    assert step.kept.again.weight is step.kept.first.weight


def test_snapshots_and_outputs_are_those_of_the_average(tmp_path):
    recipe = tiny.recipe(ema=0.8)
    (training,) = prepare([(recipe, tmp_path)], tiny.load, CPU)
    train([training])
    step, run = made(recipe), Run(tmp_path)
    for completed in range(20):
        step(completed)
        if completed + 1 in (10, 20):
            assert tiny.equal(run.snapshots.load(completed + 1), dict(tensors(step.kept)))
    found = step.log_probabilities(step.placed.batches(step.placed.data.test))
    assert np.array_equal(run.outputs().log_probabilities[-1], found.numpy())


def test_an_average_begins_anew_with_fresh_weights():
    recipe = tiny.recipe(ema=0.9, method="singlecycle")
    step = made(recipe)
    for completed in range(10):
        step(completed)
    step.restart(1)
    assert tiny.equal(dict(tensors(step.kept)), dict(tensors(nets.of(recipe, 4, {"channels": 3}, cycle=1))))


def at_the_restart(tmp_path, **changes):
    """The trained weights and the average at the end of the first of two cycles, before and after the restart."""
    recipe = tiny.recipe(**changes)
    (training,) = prepare([(recipe, tmp_path)], tiny.load, CPU)
    step = made(recipe)
    for completed in range(10):
        step(completed)
    before = {name: tensor.clone() for name, tensor in step.state().items()}
    step.continue_cycle()
    while training.completed < 10:
        training.advance()
    training.close()
    assert tiny.equal(training.step.state(), step.state())  # the run does the same at its restart
    return before, step.state()


def test_an_average_is_carried_over_a_restart_or_reset_to_the_trained_weights(tmp_path):
    before, after = at_the_restart(tmp_path / "carried", ema=0.9)
    assert tiny.equal(before, after)
    before, after = at_the_restart(tmp_path / "reset", ema=0.9, ema_at_restart="reset")
    averages = {name for name in after if name.startswith("average.")}
    assert tiny.equal(*({name: state[name] for name in state if name not in averages} for state in (before, after)))
    assert all(after[name].equal(after[name.replace("average.", "network.")]) for name in averages)
    assert not before["average.conv.weight"].equal(after["average.conv.weight"])


def test_noise_is_added_to_the_trained_weights_at_a_restart_and_not_to_their_average(tmp_path):
    before, after = at_the_restart(tmp_path / "a", ema=0.9, restart_noise=0.2)
    changed = {name for name in after if not after[name].equal(before[name])}
    assert changed == {name for name in after if name.startswith("network.") and after[name].dim() > 1}
    weights, noisy = before["network.conv.weight"].detach(), after["network.conv.weight"].detach()
    assert float((noisy - weights).std() / weights.square().mean().sqrt()) == pytest.approx(0.2, rel=0.3)
    _, other = at_the_restart(tmp_path / "b", ema=0.9, restart_noise=0.2, seed=1)
    assert not other["network.conv.weight"].equal(noisy)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adamw", "lr": 0.01, "decays": "weights"},
        {"ema": 0.9, "label_smoothing": 0.1, "transforms": ("mirror", "cutout=4"), "dropout": 0.2},
        {"transforms": ("mirror", "trivialaugment", "cutout=4", "mixup")},
        {"ema": 0.9, "ema_at_restart": "reset", "restart_noise": 0.1, "first_cycle": 2},
        {"transforms": ("lighting", "cutmix=1.0:0.5"), "label_smoothing": 0.1},
        {"sam": 0.1, "ema": 0.9},
    ],
)
def test_a_run_with_every_new_entry_resumes_bit_for_bit(tmp_path, changes):
    recipe = tiny.recipe(method="grow", pattern=("fresh", "warm"), cycles=4, **changes)
    whole = prepare([(recipe, tmp_path / "whole")], tiny.load, CPU)
    train(whole)
    looks = iter([False, False, True])
    train(prepare([(recipe, tmp_path / "parts")], tiny.load, CPU), stop=lambda: next(looks))
    assert not Run(tmp_path / "parts").finished
    parts = prepare([(recipe, tmp_path / "parts")], tiny.load, CPU, resume=True)
    train(parts)
    assert tiny.equal(whole[0].step.state(), parts[0].step.state())
    for step in Run(tmp_path / "whole").snapshots.steps:
        assert tiny.equal(*(Run(tmp_path / name).snapshots.load(step) for name in ("whole", "parts")))


def test_the_transforms_and_the_padding_of_a_recipe_replace_those_of_the_data_set():
    """Nothing is drawn for a padding of 0, and the batch is what the one transform makes of whole images."""
    step = made(tiny.recipe(padding=0, transforms=("cutout=4",)))
    step.feed.prepare(0)
    found = step.feed.read(torch.tensor([0])).inputs
    data = tiny.data(augmentation="none")
    feed = Feed(data.place(CPU), (Cutout(4),), 0, 8)
    feed.prepare(0)
    assert torch.equal(found, feed.read(torch.tensor([0])).inputs)


def test_a_transform_that_does_not_suit_the_data_is_rejected():
    with pytest.raises(ArgumentError, match=r"transforms must suit the data \(channels=1\), got lighting"):
        made(tiny.recipe(network="tiny:head", transforms=("lighting",)), tiny.data(channels=1))


def test_a_run_is_not_resumed_with_another_augmentation(tmp_path):
    recipe, looks = tiny.recipe(), iter([False, True])
    train(prepare([(recipe, tmp_path)], lambda recipe: tiny.data(), CPU), stop=lambda: next(looks))
    with pytest.raises(MismatchError, match="to resume it, got other augmentation"):
        prepare([(recipe, tmp_path)], lambda recipe: tiny.data(augmentation="none"), CPU, resume=True)
    with pytest.raises(MismatchError, match=r"transforms: None, \(Mirror\(\),\)"):
        prepare([(tiny.recipe(transforms=("mirror",)), tmp_path)], tiny.load, CPU, resume=True)


def test_a_run_whose_recipe_names_crop_and_transforms_resumes_whatever_the_data_set_has(tmp_path):
    recipe, looks = tiny.recipe(padding=0, transforms=()), iter([False, True])
    train(prepare([(recipe, tmp_path)], lambda recipe: tiny.data(), CPU), stop=lambda: next(looks))
    (training,) = prepare([(recipe, tmp_path)], lambda recipe: tiny.data(augmentation="none"), CPU, resume=True)
    assert training.completed > 0
