"""Two steps of every preset, on a few images of the real size."""

from dataclasses import replace
from importlib.machinery import ModuleSpec

import numpy as np
import pytest
import torch
from PIL import Image

from snapens.cli.preset import with_flags_of_preset
from snapens.lab import data
from snapens.lab.data.images import ImageData, Images
from snapens.lab.engine.step import TrainingStep
from snapens.lab.recipe import (
    SGD,
    Budget,
    Cutout,
    Dataset,
    Mirror,
    Network,
    Recipe,
    Settings,
    Snapshot,
    TrivialAugment,
    presets,
)

CPU = torch.device("cpu")


def photos(folder):
    """A folder with two classes of images that have no common size."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for k in range(6):
            pixels = rng.integers(0, 256, (70 + k, 90, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{k}.png")
    return data.load("folder", folder)


def small_images(classes):
    rng = np.random.default_rng(0)
    parts = [Images(rng.integers(0, 256, (8, 32, 32, 3), np.uint8), rng.integers(0, classes, 8)) for _ in range(2)]
    return ImageData("small", *parts, tuple(map(str, range(classes))), "crop-mirror", 32)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_two_steps_of_a_preset_have_finite_losses_and_change_the_weights(name, tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "find_spec", lambda library: None)
    settings = replace(presets.PRESETS[name](), batch=2, epochs=3, cycles=1)
    images = photos(tmp_path) if name == "folder-modern" else small_images({"cifar10-modern": 10}.get(name, 100))
    recipe = settings.recipe()
    step = TrainingStep(recipe, images.place(CPU), recipe.schedule(len(images.train)))
    before = [parameter.detach().clone() for parameter in step.network.parameters()]
    for completed in range(2):
        step(completed)
    assert step.losses[:2].isfinite().all()
    assert (step.losses[:2] > 0).all()
    changed = [not one.equal(other) for one, other in zip(before, step.network.parameters(), strict=True)]
    assert all(changed)


def test_the_modern_recipe_is_that_of_the_trial():
    expected = Recipe(
        Network("wrn28x10"),
        Dataset("cifar100"),
        Snapshot(3),
        Budget(epochs=150, batch=256, warmup_epochs=1),
        SGD(lr=0.2, weight_decay=5e-4, decays="weights", momentum=0.9),
        transforms=(Mirror(), TrivialAugment(), Cutout(16)),
    )
    assert presets.cifar100_modern().recipe() == expected
    assert presets.cifar10_modern().recipe() == replace(expected, dataset=Dataset("cifar10"))


@pytest.mark.parametrize(
    ("installed", "network", "pretrained"),
    [
        ({"timm", "torchvision"}, "timm:resnet50", True),
        ({"torchvision"}, "torchvision:resnet50", True),
        (set(), "resnet50", False),
    ],
)
def test_your_own_photos_start_from_the_pretrained_weights_of_an_installed_package(
    monkeypatch, installed, network, pretrained
):
    found = lambda library: ModuleSpec(library, None) if library in installed else None  # noqa: E731
    monkeypatch.setattr(presets, "find_spec", found)
    recipe = presets.folder_modern().recipe()
    assert (recipe.network.name, recipe.network.pretrained) == (network, pretrained)
    given = with_flags_of_preset(["train", "--preset", "folder-modern"])
    assert ("--pretrained" in given) == pretrained
    for other in (["--network", "small"], ["--network=small"]):  # no package has pretrained weights for it
        given = with_flags_of_preset(["train", "--preset", "folder-modern", *other])
        assert "--pretrained" not in given
        assert (given[given.index("--epochs") + 1], given[given.index("--lr") + 1]) == ("90", "0.1")


def test_flags_are_the_settings_of_the_preset_that_differ_from_their_defaults(monkeypatch):
    settings = Settings(network="small", lr=0.5, pretrained=True, transforms=("mirror", "cutout=4"), first_cycle=2.0)
    monkeypatch.setitem(presets.PRESETS, "own", lambda: settings)
    expected = "--network small --first-cycle 2.0 --lr 0.5 --pretrained --transforms mirror cutout=4"
    assert with_flags_of_preset(["train", "--preset", "own"]) == ["train", *expected.split(), "--preset", "own"]
    monkeypatch.setitem(presets.PRESETS, "own", lambda: Settings(transforms=()))
    assert with_flags_of_preset(["train", "--preset=own"]) == ["train", "--transforms", "--preset=own"]
