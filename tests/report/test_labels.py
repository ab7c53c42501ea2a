"""The labels of runs: their differences from a standard recipe, in words."""

from dataclasses import replace

import pytest
from pages import labels

from snapens.lab.paper import cells as paper
from snapens.lab.recipe import Settings
from snapens.lab.recipe.presets import cifar100_modern
from snapens.lab.recipe.transforms import TRANSFORMS

STRONG = ("mirror", "trivialaugment", "cutout=16")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "Snapshot Ensemble, 3 cycles"),
        ({"epochs": 30, "seed": 2, "held_out": 5000}, "Snapshot Ensemble, 3 cycles"),
        ({"first_cycle": 2.5}, "Snapshot Ensemble, 3 cycles, the first 2.5 times as long"),
        # 101 epochs: 1 of warm-up, 8 parts of the first cycle and 2 further cycles of 10 epochs each
        (
            {"epochs": 101, "first_cycle": 8.0, "later_peak": 0.25},
            "FGE: one cosine, then 2 cycles of 10 epochs with 0.25 times the peak rate",
        ),
        ({"cycles": 1}, "one cosine"),
        ({"cycles": 1, "ema": 0.999}, "one cosine, EMA of the weights"),
        ({"ema": 0.999}, "Snapshot Ensemble, 3 cycles, each snapshot an EMA"),
        (
            {"ema": 0.99, "ema_at_restart": "reset"},
            "Snapshot Ensemble, 3 cycles, each snapshot an EMA (at restart reset, decay 0.99)",
        ),
        ({"cycles": 1, "sam": 0.1}, "one cosine, SAM"),
        ({"cycles": 1, "sam": 0.05, "sam_every": 1}, "one cosine, SAM (radius 0.05, every 1)"),
        ({"cycles": 1, "label_smoothing": 0.1}, "one cosine, label smoothing 0.1"),
        ({"cycles": 1, "weight_decay": 1e-3}, "one cosine, weight decay 0.001"),
        ({"cycles": 1, "lr": 0.1, "batch": 128}, "one cosine, batches of 128, peak rate 0.1"),
        ({"cycles": 1, "warmup_epochs": 5}, "one cosine, 5 epochs of warm-up"),
        ({"cycles": 1, "dropout": 0.3}, "one cosine, network dropout: 0.3"),
        ({"cycles": 2, "restart_noise": 0.1}, "Snapshot Ensemble, 2 cycles, method restart noise: 0.1"),
        ({"cycles": 1, "transforms": STRONG[:2]}, "one cosine, transforms: mirroring and TrivialAugment"),
        (
            {"cycles": 1, "transforms": (*STRONG[:2], "cutmix=1.0:0.5")},
            "one cosine, CutMix (probability 0.5) instead of cutout",
        ),
        ({"cycles": 1, "transforms": (*STRONG[:2], "cutout=8")}, "one cosine, cutout (size 8) instead of cutout"),
        ({"cycles": 1, "transforms": None}, "one cosine, default transforms"),
        ({"cycles": 1, "network": "wrn16x8"}, "one cosine, WRN-16-8"),
        ({"cycles": 1, "dataset": "cifar10"}, "one cosine"),  # the preset of CIFAR-10 is the same
    ],
)
def test_a_label_names_each_difference_from_the_preset(changed, words):
    assert labels.words(replace(cifar100_modern(), **changed).recipe()) == words


def test_every_transform_has_a_name():
    every = labels.words(replace(cifar100_modern(), transforms=tuple(TRANSFORMS)).recipe())
    assert every.startswith("Snapshot Ensemble, 3 cycles, transforms: CutMix and cutout and colour jitter and lighting")


def test_a_run_with_a_recipe_of_the_paper_has_no_changes():
    recipe = replace(paper.find("resnet110-cifar100-snapshot-0.2").recipe, seed=4)
    assert labels.words(recipe) == "Snapshot Ensemble, 5 cycles"
    assert labels.changes(recipe) == ()


def test_a_recipe_without_a_preset_is_compared_with_the_default_recipe():
    assert labels.words(Settings(network="small", dataset="glyphs", cycles=1, lr=0.3).recipe()) == (
        "one cosine, peak rate 0.3"
    )
