import json
import math
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch

from snapens import CyclicCosine, StepDecay
from snapens.errors import ArgumentError
from snapens.lab.data import DATASETS
from snapens.lab.nets import build
from snapens.lab.paper import cells as paper
from snapens.lab.paper import figures as paper_figures
from snapens.lab.recipe import Recipe, Settings

CLASSES = {"cifar10": 10, "cifar100": 100, "svhn-extra": 10, "tinyimagenet": 200, "imagenet": 1000}
PUBLISHED = [cell for cell in paper.cells() if cell.published_percent is not None]
ALL_RUNS = paper.runs(paper.cells())


def test_all_88_published_cells_are_there():
    assert Counter(cell.where for cell in PUBLISHED) == {"table 1": 80, "table 2": 3, "table 3": 5}
    table_1 = [cell for cell in PUBLISHED if cell.where == "table 1"]
    assert Counter(cell.recipe.network.name for cell in table_1) == {
        "resnet110": 20,
        "wrn32": 24,
        "densenet40": 24,
        "densenet100": 12,
    }
    assert Counter(cell.recipe.dataset.name for cell in table_1) == {
        "cifar10": 23,
        "cifar100": 23,
        "svhn-extra": 17,
        "tinyimagenet": 17,
    }
    assert len({cell.name for cell in paper.cells()}) == len(paper.cells())


@pytest.mark.parametrize(
    ("name", "percent"),
    [
        ("densenet100-cifar100-snapshot-0.2", 17.41),
        ("densenet100-cifar10-snapshot-0.2", 3.44),
        ("resnet110-cifar100-snapshot-0.2", 24.19),
        ("resnet110-svhn-snapshot-0.1", 1.63),
        ("wrn32-cifar10-snapshot-0.1", 4.41),
        ("wrn32-svhn-snapshot-0.2", 1.51),
        ("wrn32-tinyimagenet-snapshot-0.2", 32.90),
        ("densenet40-tinyimagenet-dropout", 39.68),
        ("densenet100-cifar100-single", 19.25),
        ("resnet50-imagenet-single", 24.01),
        ("resnet50-imagenet-m2", 23.33),
        ("densenet40-cifar100-m8", 21.89),
    ],
)
def test_published_values_are_the_papers(name, percent):
    assert paper.find(name).published_percent == percent


def test_the_sums_of_the_table_columns_are_the_papers():
    """Added up from the paper's LaTeX source, in hundredths of a percent, so that one mistyped digit shows."""
    sums = Counter()
    for cell in PUBLISHED:
        if cell.where == "table 1":
            sums[cell.recipe.dataset.name] += round(100 * cell.published_percent)
    assert sums == {"cifar10": 11_360, "cifar100": 51_650, "svhn-extra": 2_969, "tinyimagenet": 66_060}


def test_five_values_are_the_densenet_papers():
    assert {cell.name: cell.published_percent for cell in paper.cells() if cell.starred} == {
        "densenet40-cifar10-single": 5.24,
        "densenet40-cifar100-single": 24.42,
        "densenet40-svhn-dropout": 1.79,
        "densenet100-cifar10-single": 3.74,
        "densenet100-cifar100-single": 19.25,
    }


def test_single_and_nocycle_are_two_readings_of_one_run():
    single, nocycle = paper.find("wrn32-cifar10-single"), paper.find("wrn32-cifar10-nocycle")
    assert paper.runs([single, nocycle]) == {single.recipe: (single, nocycle)}
    assert (single.reads, nocycle.reads) == ("last", "ensemble")


def test_table_3_with_six_cycles_is_a_run_of_table_1():
    cell = paper.find("densenet40-cifar100-m6")
    assert paper.find("densenet40-cifar100-snapshot-0.2") in ALL_RUNS[cell.recipe]


def test_each_recipe_is_trained_once():
    # Table 1: 80 less its 14 NoCycle rows; Table 2: 3; Table 3: 5 less the one of Table 1
    assert len(paper.runs(PUBLISHED)) == 80 - 14 + 3 + 4


def test_a_true_ensemble_is_one_run_a_seed_and_shares_the_first_with_the_single_model():
    cell = paper.find("densenet40-cifar100-single-x3")
    assert [recipe.seed for recipe in cell.recipes()] == [0, 1, 2]
    assert [recipe.seed for recipe in cell.recipes(repetition=2)] == [6, 7, 8]
    assert cell.recipes()[0] == paper.find("densenet40-cifar100-single").recipe
    assert cell.reads == "last"
    assert len(paper.runs([cell, paper.find("densenet40-cifar100-single-x2")])) == 3
    assert paper.find("densenet40-cifar100-snapshot-0.2-x2").reads == "ensemble"


@pytest.mark.parametrize(
    ("name", "epochs", "cycles", "batch", "lr", "stem_stride"),
    [
        ("resnet110-cifar10-single", 200, 5, 64, 0.1, 1),
        ("wrn32-cifar100-snapshot-0.2", 200, 5, 64, 0.2, 1),
        ("densenet40-cifar10-dropout", 300, 6, 64, 0.1, 1),
        ("densenet100-cifar100-singlecycle", 300, 6, 64, 0.1, 1),
        ("wrn32-svhn-snapshot-0.1", 40, 5, 64, 0.1, 1),
        ("resnet110-tinyimagenet-snapshot-0.2", 150, 6, 128, 0.2, 2),
        ("wrn32-tinyimagenet-dropout", 150, 6, 128, 0.1, 2),
        ("densenet40-tinyimagenet-nocycle", 150, 6, 64, 0.1, 2),
        ("resnet50-imagenet-m3", 90, 3, 256, 0.1, 1),
        ("resnet50-imagenet-single", 90, 1, 256, 0.1, 1),
        ("densenet40-cifar100-m10", 300, 10, 64, 0.2, 1),
        ("densenet40-cifar10-singlecycle-60-epochs", 60, 6, 64, 0.1, 1),
    ],
)
def test_budgets_are_the_papers(name, epochs, cycles, batch, lr, stem_stride):
    recipe = paper.find(name).recipe
    assert (recipe.budget.epochs, recipe.method.cycles, recipe.budget.batch) == (epochs, cycles, batch)
    assert (recipe.optimizer.lr, recipe.network.stem_stride) == (lr, stem_stride)


def test_dropout_is_a_fifth_in_the_dropout_rows_and_nowhere_else():
    for cell in paper.cells():
        assert cell.recipe.network.dropout == (0.2 if cell.name.endswith("-dropout") else 0)


@pytest.mark.parametrize(
    ("name", "images", "total_steps", "first_snapshot"),
    [
        ("resnet110-cifar100-snapshot-0.1", 50_000, 156_250, 31_250),
        ("densenet40-cifar100-m8", 50_000, 234_375, 29_296),
        ("wrn32-svhn-nocycle", 598_388, 373_992, 74_798),
        ("wrn32-tinyimagenet-snapshot-0.2", 100_000, 117_187, 19_531),
        ("resnet50-imagenet-m2", 1_281_167, 450_410, 225_205),
    ],
)
def test_steps_are_counted_over_the_images_that_are_trained_on(name, images, total_steps, first_snapshot):
    recipe = paper.find(name).recipe
    schedule = recipe.schedule(paper.images(recipe))
    assert paper.images(recipe) == images
    assert (schedule.total_steps, schedule.snapshot_steps[0]) == (total_steps, first_snapshot)


NETWORKS = sorted({(r.network.name, r.dataset.name, r.network.dropout, r.network.stem_stride) for r in ALL_RUNS})


@pytest.mark.parametrize(("network", "dataset", "dropout", "stem_stride"), NETWORKS)
def test_every_network_can_be_built_at_full_size(network, dataset, dropout, stem_stride):
    size = {"imagenet": 224, "tinyimagenet": 64}.get(dataset, 32)
    with torch.device("meta"):
        built = build(network, classes=CLASSES[dataset], dropout=dropout, stem_stride=stem_stride)
        assert built(torch.empty(2, 3, size, size)).shape == (2, CLASSES[dataset])


def test_every_recipe_can_be_scheduled_over_the_real_number_of_images():
    for recipe in ALL_RUNS:
        schedule = recipe.schedule(paper.images(recipe))
        assert isinstance(schedule, StepDecay if recipe.method.kind == "single" else CyclicCosine)
        assert len(schedule.snapshot_steps) == recipe.method.cycles
        assert schedule.total_steps == math.floor(recipe.budget.epochs * paper.images(recipe) / recipe.budget.batch)


def test_every_recipe_names_a_data_set_and_comes_back_from_json():
    for recipe in ALL_RUNS:
        assert recipe.dataset.name in DATASETS
        assert Recipe.of(json.loads(recipe.identity)) == recipe


def test_every_figure_is_drawn_from_cells_that_exist():
    for name in paper_figures.FIGURES:
        for panel in paper_figures.figure(name).panels():
            assert all(cell.recipe in ALL_RUNS for cell in panel.cells)
            assert {(cell.network, cell.dataset) for cell in panel.cells} == {(panel.network, panel.dataset)}
    panels = {name: len(figure.panels()) for name, figure in paper_figures.FIGURES.items()}
    # in the supplement 14 pairs of network and data set, two rates
    assert panels == {"2": 1, "3": 4, "4": 3, "5": 4, "6": 2, "S": 28}


def test_figures_take_the_networks_that_their_captions_name():
    networks = {
        name: {cell.recipe.network.name for panel in figure.panels() for cell in panel.cells}
        for name, figure in paper_figures.FIGURES.items()
    }
    assert networks == {
        "2": {"densenet100"},
        "3": {"densenet100"},
        "4": {"densenet40"},
        "5": {"densenet40"},
        "6": {"densenet100"},
        "S": {"resnet110", "wrn32", "densenet40", "densenet100"},
    }


def test_figure_4_has_budgets_from_60_to_300_epochs_and_true_ensembles_of_up_to_six():
    *budgets, models = paper_figures.figure("4").panels()
    for panel, dataset in zip(budgets, ("cifar10", "cifar100"), strict=True):
        found = [cell.recipe for cell in panel.cells]
        assert [(recipe.method.kind, recipe.budget.epochs) for recipe in found] == [
            (method, epochs) for method in ("snapshot", "singlecycle") for epochs in (60, 120, 180, 240, 300)
        ]
        assert {(recipe.optimizer.lr, recipe.method.cycles, recipe.dataset.name) for recipe in found} == {
            (0.1, 6, dataset)
        }
    snapshot, *true_ensembles = models.cells
    assert snapshot.published_percent == 21.93
    assert [cell.seeds for cell in true_ensembles] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: paper.find("densenet40-cifar100-m7"), "unknown cell 'densenet40-cifar100-m7': did"),
        (lambda: paper_figures.figure("7"), "unknown figure '7': choose from 2, 3, 4, 5, 6, S"),
        (lambda: paper.images(Settings(dataset="cifar").recipe()), "unknown dataset 'cifar': did you mean cifar"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(ask, message):
    with pytest.raises(ArgumentError, match=message):
        ask()


def test_a_cell_has_its_network_data_set_and_method_as_fields():
    cell = paper.find("wrn32-svhn-snapshot-0.1")
    assert (cell.network, cell.dataset, cell.method) == ("wrn32", "svhn", "snapshot-0.1")
    assert cell.recipe.dataset.name == "svhn-extra"
    assert {cell.network for cell in paper.cells()} == {"resnet110", "wrn32", "densenet40", "densenet100", "resnet50"}


OTHER = Settings(network="small", dataset="glyphs", epochs=40, lr=0.2)


def test_a_recipe_outside_the_paper_is_named_by_words_and_a_hash():
    assert re.fullmatch(
        "small-glyphs-snapshot-0.2-40-epochs-[0-9a-f]{8}-seed7", paper.run_name(replace(OTHER, seed=7).recipe())
    )
    assert paper.run_name(paper.find("wrn32-cifar10-nocycle").recipe) == "wrn32-cifar10-single-seed0"


def test_two_recipes_never_have_the_same_name():
    changes = [
        {},
        {"seed": 1},
        {"cycles": 4},
        {"batch": 32},
        {"dropout": 0.1},
        {"weight_decay": 5e-4},
        {"momentum": 0.8},
        {"stem_stride": 2},
        {"warmup_epochs": 1},
        {"held_out": 5},
        {"held_out": 5, "held_out_seed": 1},
        {"lr": 0.2000001},
        {"network": "mine:small"},
        {"network": "mine/small"},
        {"network": "n" * 200},
        {"network": "n" * 201},
        *({"method": "grow", "pattern": pattern} for pattern in (("warm",), ("fresh",), ("warm", "fresh"))),
    ]
    names = {paper.run_name(replace(OTHER, **change).recipe()) for change in changes}
    assert len(names) == len(changes)
    assert all(re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{,130}", name) for name in names)  # each is a file name
    seedless = {paper.run_name(replace(OTHER, seed=seed).recipe()).rpartition("-seed")[0] for seed in (0, 1)}
    assert len(seedless) == 1


def test_the_paper_is_read_without_torch():
    code = "import sys; from snapens.lab.paper import cells; cells.cells(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
