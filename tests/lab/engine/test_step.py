import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from snapens.errors import MismatchError
from snapens.lab import nets
from snapens.lab.data.images import ImageData, Images
from snapens.lab.data.placed import PlacedImages
from snapens.lab.engine.feed import Feed
from snapens.lab.engine.step import TrainingStep
from snapens.lab.nets.dropout import KeyedDropout
from snapens.lab.paper import cells as paper
from snapens.lab.recipe import Dataset, Mirror
from snapens.weights import tensors

CPU = torch.device("cpu")


def made(recipe, data=None):
    data = data or tiny.data()
    return TrainingStep(recipe, data.place(CPU), recipe.schedule(len(data.train)))


def taken(step, first, last):
    for completed in range(first, last):
        step(completed)
    return step


def copied(state):
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def built(recipe, cycle=0):
    return nets.of(recipe, 4, {"channels": 3}, cycle)


def cosine(recipe, step):
    """Equation 2, of 20 steps in cycles of 10."""
    return recipe.optimizer.lr / 2 * (math.cos(math.pi * (step % 10) / 10) + 1)


def decayed(recipe, step):
    """Divided by ten at 50 % and at 75 % of 20 steps."""
    return recipe.optimizer.lr * (1 if step < 10 else 0.1 if step < 15 else 0.01)


RECIPES = {
    "snapshot": (tiny.recipe(), cosine),
    "single": (tiny.recipe(method="single", weight_decay=0.01, momentum=0.8), decayed),
    "dropout": (tiny.recipe(dropout=0.3, seed=6), cosine),
    "small": (tiny.recipe(network="small", seed=1), cosine),
}


@pytest.mark.parametrize(("recipe", "rate"), RECIPES.values(), ids=RECIPES)
def test_steps_are_those_of_a_plain_loop_with_torchs_sgd(recipe, rate):
    network, feed = built(recipe), Feed(PlacedImages(tiny.data(), CPU), (Mirror(),), recipe.seed, 8)
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=1.0,
        momentum=recipe.optimizer.momentum,
        nesterov=True,
        weight_decay=recipe.optimizer.weight_decay,
    )
    step, losses = made(recipe), []
    for completed in range(20):
        step(completed)
        feed.prepare(completed)
        images, labels = feed.read(torch.tensor([completed]))[:2]
        for module in network.modules():
            if isinstance(module, KeyedDropout):
                module.key.fill_((recipe.seed << 32) + completed)
        optimizer.param_groups[0]["lr"] = rate(recipe, completed)
        loss = cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert float(step.optimizer.param_groups[0]["lr"]) == pytest.approx(rate(recipe, completed), rel=1e-6)
    assert step.losses.tolist() == pytest.approx(losses, rel=1e-4)
    ours, theirs = tensors(step.network), tensors(network)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], rtol=1e-4, atol=1e-5), name
    momentum = step.state()
    for name, parameter in network.named_parameters():
        held = optimizer.state[parameter]["momentum_buffer"]
        assert torch.allclose(momentum[f"optimizer.momentum_buffer.{name}"], held, rtol=1e-3, atol=1e-4), name


def test_the_first_step_can_be_worked_out_by_hand():
    recipe = tiny.recipe(network="tiny:head", lr=0.02, weight_decay=0.1, momentum=0.7)
    step = made(recipe)
    step.feed.prepare(0)
    images, labels = step.feed.read(torch.tensor([0]))[:2]
    x = images.flatten(1).double().numpy()
    weight, bias = (tensors(step.network)[name].detach().double().numpy() for name in ("1.weight", "1.bias"))
    scores = x @ weight.T + bias
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    error = (probabilities - np.eye(4)[labels]) / len(labels)
    step(0)
    # Nesterov's first step: the momentum is the gradient, and the gradient is applied 1 + 0.7 times
    for name, before, gradient in (("1.weight", weight, error.T @ x), ("1.bias", bias, error.sum(0))):
        gradient = gradient + 0.1 * before
        after = tensors(step.network)[name].detach().numpy()
        assert np.abs(after - (before - 0.02 * 1.7 * gradient)).max() < 1e-6
        assert np.abs(step.state()[f"optimizer.momentum_buffer.{name}"].numpy() - gradient).max() < 1e-6
    expected = -np.log(probabilities[np.arange(8), labels]).mean()
    assert step.losses[0].item() == pytest.approx(expected, rel=1e-5)


def test_every_loss_has_its_place_and_the_count_goes_on():
    step = taken(made(tiny.recipe()), 0, 7)
    assert step.completed.tolist() == [7]
    assert (step.losses[:7] > 0).all()
    assert (step.losses[7:] == 0).all()
    assert len(step.losses) == 20


@pytest.mark.parametrize("cycle", [0, 1, 3])
def test_a_restart_takes_the_weights_of_the_seed_and_the_cycle_and_forgets_the_momentum(cycle):
    recipe = tiny.recipe(seed=4)
    step = taken(made(recipe), 0, 7)
    places = {name: tensor.data_ptr() for name, tensor in step.state().items()}
    losses = step.losses.clone()
    assert any(tensor.any() for name, tensor in step.state().items() if name.startswith("optimizer."))
    step.restart(cycle)
    assert tiny.equal(tensors(step.network), tensors(built(recipe, cycle)))
    assert not any(tensor.any() for name, tensor in step.state().items() if name.startswith("optimizer."))
    assert step.completed.tolist() == [7]
    assert torch.equal(step.losses, losses)
    assert {name: tensor.data_ptr() for name, tensor in step.state().items()} == places


def test_cycles_and_seeds_have_weights_of_their_own():
    weights = [tensors(built(tiny.recipe(seed=seed), cycle))["conv.weight"] for seed in (0, 1) for cycle in (0, 1)]
    assert len({tuple(weight.flatten().tolist()) for weight in weights}) == 4


def test_a_state_is_loaded_in_place_and_every_tensor_of_it():
    recipe = tiny.recipe(dropout=0.2)
    trained, fresh = taken(made(recipe), 0, 7), made(recipe)
    places = {name: tensor.data_ptr() for name, tensor in fresh.state().items()}
    state = copied(trained.state())
    fresh.load(state)
    assert tiny.equal(fresh.state(), state)
    assert {name: tensor.data_ptr() for name, tensor in fresh.state().items()} == places
    assert {name.partition(".")[0] for name in state} == {"network", "optimizer", "losses", "completed"}
    assert {name for name in state if "running" in name} == {
        "network.norm.running_mean",
        "network.norm.running_var",
    }


@pytest.mark.parametrize("stop", [1, 7, 10, 19])
def test_a_state_is_all_it_takes_to_go_on_bit_for_bit(stop):
    recipe = tiny.recipe(dropout=0.3, seed=2)
    whole, first, second = (made(recipe) for _ in range(3))
    taken(whole, 0, 20)
    state = copied(taken(first, 0, stop).state())
    torch.manual_seed(123)  # has no part in it
    second.load(state)
    assert tiny.equal(taken(second, stop, 20).state(), whole.state())


def test_a_steps_mask_is_its_own_and_the_same_every_time():
    recipe = tiny.recipe(dropout=0.5, seed=3)

    def mask(recipe, completed):
        step = made(recipe)
        step.completed.fill_(completed)
        step(completed)
        [dropout] = (module for module in step.network.modules() if isinstance(module, KeyedDropout))
        return str(dropout(torch.ones(100)).tolist())  # the key stays until the next step

    assert mask(recipe, 5) == mask(recipe, 5)
    assert len({mask(recipe, completed) for completed in range(6)}) == 6
    assert mask(replace(recipe, seed=4), 5) != mask(recipe, 5)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    taken(made(tiny.recipe(dropout=0.3)), 0, 5).restart(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_log_probabilities_are_those_of_the_network_in_evaluation():
    recipe = tiny.recipe(dropout=0.5)
    step = taken(made(recipe), 0, 12)
    before = copied(step.state())
    batches = list(step.placed.batches(step.placed.data.test))
    found = step.log_probabilities(batches)
    copy = built(recipe).eval()
    copy.load_state_dict({name: tensor.detach() for name, tensor in tensors(step.network).items()})
    with torch.no_grad():
        expected = copy(torch.cat(batches)).log_softmax(1)
    assert found.shape == (20, 4)
    assert found.dtype == torch.float16
    assert (found.float() - expected).abs().max() < 1e-3 * expected.abs().max()
    assert step.network.training
    assert all(module.training for module in step.network.modules())
    assert tiny.equal(step.state(), before)  # the statistics of BatchNorm among them


def test_a_network_goes_on_training_even_when_its_evaluation_fails():
    step = made(tiny.recipe())
    with pytest.raises(RuntimeError, match="expected input"):
        step.log_probabilities([torch.zeros(1, 7, 8, 8)])
    assert step.network.training


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("completed"),
        lambda state: state.update(more=torch.zeros(1)),
        lambda state: state.update({"network.conv.weight": torch.zeros(6, 3, 5, 5)}),
        lambda state: state.update(losses=torch.zeros(21)),
    ],
)
def test_another_networks_state_is_refused_and_nothing_is_changed(change):
    step = made(tiny.recipe())
    before, state = copied(step.state()), copied(taken(made(tiny.recipe()), 0, 3).state())
    change(state)
    with pytest.raises(MismatchError, match="state must be that of the recipe's network, got other tensors"):
        step.load(state)
    assert tiny.equal(step.state(), before)
    with pytest.raises(MismatchError, match="state must be that of the recipe's network"):
        step.load(made(tiny.recipe(network="tiny:wide")).state())


def test_dropout_in_a_network_of_ones_own_is_keyed_too():
    step = made(tiny.recipe(dropout=0.5))
    assert not any(type(module) is nn.Dropout for module in step.network.modules())


def test_only_a_network_of_the_lab_is_accelerated():
    """A network of the user's own may be a DenseNet with changed modules."""
    assert made(tiny.recipe(network="densenet40")).network._accelerated
    assert not made(tiny.recipe(network="tiny:dense")).network._accelerated


# the data sets of the paper: classes, image size, augmentation
SHAPES = {
    "cifar10": (10, 32, "crop-mirror"),
    "cifar100": (100, 32, "crop-mirror"),
    "svhn-extra": (10, 32, "none"),
    "tinyimagenet": (200, 64, "crop-mirror-rgb"),
    "imagenet": (1000, 224, "imagenet"),
}


def combinations():
    """Each network, data set, dropout, stem and method of the paper's recipes once."""
    found = {}
    for recipe in paper.runs(paper.cells()):
        network = recipe.network
        key = (network.name, recipe.dataset.name, network.dropout, network.stem_stride, recipe.method.kind)
        found.setdefault(key, recipe)
    return found


COMBINATIONS = combinations()


def take_two_steps(recipe, shrunk=1):
    """At batch 2 and, where that is asked for, on smaller images, which no layer of the networks depends on."""
    name = recipe.dataset.name
    classes, size, augmentation = SHAPES[name]
    size //= shrunk
    rng = np.random.default_rng(0)
    part = Images(rng.integers(0, 256, (4, size, size, 3), np.uint8), rng.integers(0, classes, 4))
    train = Images(tiny.Files(part.pixels), part.labels) if augmentation == "imagenet" else part
    names = tuple(map(str, range(classes)))
    data = ImageData(name, train, part, names, augmentation, size, mean=(99.0,) * 3, deviation=(50.0,) * 3)
    still = replace(recipe.optimizer, weight_decay=0.0)  # a gradient alone moves a weight
    budget = replace(recipe.budget, batch=2)
    step = made(replace(recipe, dataset=Dataset(name), budget=budget, optimizer=still), data)
    before = copied(dict(step.network.named_parameters()))
    taken(step, 0, 2)
    assert step.completed.tolist() == [2]
    assert step.losses[:2].isfinite().all()
    assert (step.losses[:2] > 0).all()
    for name, parameter in step.network.named_parameters():
        assert parameter.isfinite().all(), name
        assert not torch.equal(parameter, before[name]), name


def names(combination):
    return "-".join(map(str, combination))


def quick():
    """Each network with and without dropout, and each stem, in the method seen first."""
    found = {}
    for network, dataset, dropout, stem, method in COMBINATIONS:
        found.setdefault((network, bool(dropout), stem), (network, dataset, dropout, stem, method))
    return sorted(found.values())


@pytest.mark.parametrize("combination", quick(), ids=names)
def test_every_network_of_the_paper_takes_two_steps_on_small_images(combination):
    take_two_steps(COMBINATIONS[combination], shrunk=4)


@pytest.mark.long
@pytest.mark.parametrize("combination", sorted(COMBINATIONS), ids=names)
def test_every_recipe_of_the_paper_takes_two_steps_on_images_of_its_size(combination):
    take_two_steps(COMBINATIONS[combination])


def test_the_recipes_of_the_paper_are_all_among_those_combinations():
    assert {network for network, *_ in quick()} == {"resnet110", "wrn32", "densenet40", "densenet100", "resnet50"}
    assert {dataset for _, dataset, *_ in COMBINATIONS} == SHAPES.keys()
