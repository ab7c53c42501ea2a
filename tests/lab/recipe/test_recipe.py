"""Recipes: values that check themselves, come back from JSON as they were, and mean what flat settings meant."""

import json
import random
import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from snapens import CyclicCosine, StepDecay
from snapens.cli.preset import with_flags_of_preset
from snapens.combination import Combination
from snapens.errors import ArgumentError
from snapens.lab.data import DATASETS
from snapens.lab.nets import NETWORKS
from snapens.lab.recipe import (
    EMA,
    SAM,
    SGD,
    AdamW,
    Budget,
    ColourJitter,
    CrossEntropy,
    CutMix,
    Cutout,
    Dataset,
    Distillation,
    Grow,
    Lighting,
    Mirror,
    Mixup,
    Network,
    Recipe,
    Settings,
    Single,
    SingleCycle,
    Snapshot,
    Teacher,
    TrivialAugment,
    settings,
)
from snapens.lab.recipe.methods import METHODS
from snapens.lab.recipe.optimizers import OPTIMIZERS
from snapens.lab.recipe.transforms import named
from snapens.lab.recipe.value import unknown


def some_settings(rng):
    """What the command line may be given, drawn at random."""
    method, optimizer, batch = rng.choice(list(METHODS)), rng.choice(["sgd", "adamw"]), rng.randint(1, 300)
    return Settings(
        network=rng.choice(["wrn32", "timm:vit", "my.module:Net"]),
        dataset=rng.choice(["cifar10", "Größe/\n\"'"]),
        method=method,
        epochs=rng.randint(4, 200),
        cycles=rng.randint(1, 9),
        restart_noise=0 if method in ("single", "singlecycle") else rng.choice([0, 0.1]),
        first_cycle=1 if method == "single" else rng.choice([1, 1.5, 3]),
        later_peak=1 if method == "single" else rng.choice([1, 0.5]),
        optimizer=optimizer,
        lr=rng.choice([None, 1, 10 ** rng.uniform(-6, 1)]),
        batch=batch,
        seed=rng.randrange(1 << 63),
        dropout=rng.random(),
        stem_stride=rng.randint(1, 2),
        pretrained=rng.choice([False, True]),
        weight_decay=rng.choice([None, 0, 10 ** rng.uniform(-9, 0)]),
        decays=rng.choice(["all", "weights"]),
        momentum=rng.choice([None, rng.uniform(0.01, 0.99)]) if optimizer == "sgd" else None,
        label_smoothing=rng.choice([0.0, 0.1]),
        padding=rng.choice([None, 0, 4]),
        transforms=rng.choice(
            [
                None,
                (),
                ("mirror", "cutout=8"),
                ("jitter=0.3", "lighting"),
                ("trivialaugment", "mixup=0.2:0.5", "cutmix"),
            ]
        ),
        ema=rng.choice([None, 0.99]),
        sam=rng.choice([None, 0.1]) if batch >= 8 else None,
        warmup_epochs=rng.randint(0, 3),
        pattern=tuple(rng.choices(["warm", "fresh"], k=rng.randint(1, 5))) if method == "grow" else (),
        held_out=rng.randint(0, 5000),
        held_out_seed=rng.randrange(1 << 63),
    )


def test_a_thousand_recipes_come_back_from_json_as_they_were():
    rng = random.Random(0)
    for _ in range(1000):
        recipe = some_settings(rng).recipe()
        again = Recipe.of(json.loads(recipe.identity))
        assert again == recipe
        assert hash(again) == hash(recipe)
        assert again.identity == recipe.identity


def test_json_leaves_out_what_is_at_its_default():
    assert Recipe().identity == "{}"
    recipe = Recipe(Network("wrn32"), optimizer=SGD(lr=0.2, momentum=0.9), transforms=(Mirror(), Cutout()), seed=3)
    assert recipe.written() == {
        "network": {"name": "wrn32"},
        "optimizer": {"kind": "sgd", "lr": 0.2},
        "transforms": [{"kind": "mirror"}, {"kind": "cutout"}],
        "seed": 3,
    }
    assert Recipe(transforms=()).written() == {"transforms": []}


def test_the_defaults_are_those_of_format_1_and_never_change():
    """Folders and ledger entries leave defaults out: another default would change what they say."""
    flat = {name: value for name, value in Recipe().flat().items() if value is not None}
    assert flat == {
        "network.name": "resnet110",
        "network.dropout": 0.0,
        "network.stem_stride": 1,
        "network.pretrained": False,
        "dataset.name": "cifar100",
        "dataset.held_out": 0,
        "dataset.held_out_seed": 0,
        "method.kind": "snapshot",
        "method.cycles": 5,
        "method.first_cycle": 1.0,
        "method.later_peak": 1.0,
        "method.restart_noise": 0.0,
        "budget.epochs": 200,
        "budget.batch": 64,
        "budget.warmup_epochs": 0,
        "optimizer.kind": "sgd",
        "optimizer.lr": 0.1,
        "optimizer.weight_decay": 1e-4,
        "optimizer.decays": "all",
        "optimizer.momentum": 0.9,
        "objective.kind": "cross_entropy",
        "objective.label_smoothing": 0.0,
        "seed": 0,
        "batchnorm_parts": 1,
    }
    teacher = Teacher("a", (4,))
    entries = (
        AdamW(),
        EMA(),
        Cutout(),
        ColourJitter(),
        Lighting(),
        Mirror(),
        Grow(),
        teacher,
        Distillation(teacher),
        Mixup(),
        CutMix(),
        TrivialAugment(),
        SAM(),
    )
    assert [vars(entry) for entry in entries] == [
        {"lr": 1e-3, "weight_decay": 0.01, "decays": "all", "beta1": 0.9, "beta2": 0.999},
        {"at_restart": "carried", "decay": 0.999},
        {"size": 16},
        {"strength": 0.4},
        {"strength": 0.1},
        {},
        {"cycles": 5, "first_cycle": 1.0, "later_peak": 1.0, "restart_noise": 0.0, "pattern": ("fresh",)},
        {"run": "a", "steps": (4,), "weights": (), "temperature": 1.0},
        {"teacher": teacher, "share": 0.9, "temperature": 2.0},
        {"alpha": 0.2, "probability": 1.0},
        {"alpha": 1.0, "probability": 1.0},
        {},
        {"radius": 0.1, "every": 4, "moves": "all"},
    ]


def test_a_distillation_comes_back_from_json_with_its_teacher():
    recipe = Recipe(objective=Distillation(Teacher("a1", (4, 8), (1.0, 3.0), temperature=1.5), share=0.5))
    assert recipe.written() == {
        "objective": {
            "kind": "distillation",
            "teacher": {"run": "a1", "steps": [4, 8], "weights": [1.0, 3.0], "temperature": 1.5},
            "share": 0.5,
        }
    }
    assert Recipe.of(json.loads(recipe.identity)) == recipe
    assert "objective.teacher.run: 'a1', 'b2'" in recipe.differences(
        Recipe(objective=Distillation(Teacher("b2", (4, 8))))
    )


def test_a_teacher_combines_the_members_of_a_combination_and_never_exits_early():
    combination = Combination((("a1", 4), ("a1", 8)), (1, 3), temperature=1.5, exit_threshold=0.9)
    teacher = Teacher.combining(combination)
    assert teacher == Teacher("a1", (4, 8), (1.0, 3.0), 1.5)
    assert teacher.combination == replace(combination, exit_threshold=None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Teacher("a", ()), r"members must have at least one \(run, step\)"),
        (lambda: Teacher("a", (4, 4)), "members must be distinct"),
        (lambda: Teacher("a", (4,), (-1.0,)), "weights must be 1 finite numbers of at least 0"),
        (lambda: Teacher("a", (4,), temperature=0.0), "temperature must be a finite number greater than 0, got 0.0"),
        (lambda: Teacher.combining(Combination((("a", 4), ("b", 4)))), "members of one run .* got those of 2 runs"),
        (lambda: Teacher.combining(Combination.last(2)), "must list members of one run .* got those of 0 runs"),
        (lambda: Distillation(Teacher("a", (4,)), share=0.0), "share must be more than 0 and at most 1, got 0.0"),
        (lambda: Distillation(Teacher("a", (4,)), share=1.5), "share must be more than 0 and at most 1, got 1.5"),
        (lambda: Distillation(Teacher("a", (4,)), temperature=-1.0), "temperature must be .* greater than 0, got -1.0"),
        (lambda: Distillation("runs/a"), "teacher must be of type Teacher.*, got 'runs/a'"),
    ],
)
def test_a_distillation_that_breaks_a_rule_is_rejected(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_a_flat_recipe_of_format_1_means_what_it_meant():
    written = {
        "network": "wrn32",
        "dataset": "cifar10",
        "method": "grow",
        "epochs": 100,
        "cycles": 4,
        "lr": 0.2,
        "batch": 32,
        "seed": 7,
        "dropout": 0.3,
        "stem_stride": 2,
        "weight_decay": 0.0005,
        "momentum": 0.8,
        "warmup_epochs": 2,
        "pattern": ["warm", "fresh"],
        "held_out": 50,
        "held_out_seed": 9,
    }
    assert Recipe.of(written) == Recipe(
        Network("wrn32", dropout=0.3, stem_stride=2),
        Dataset("cifar10", held_out=50, held_out_seed=9),
        Grow(4, ("warm", "fresh")),
        Budget(100, 32, 2),
        SGD(0.2, 0.0005, momentum=0.8),
        seed=7,
    )


def test_equal_recipes_have_equal_identities_however_their_numbers_are_written():
    assert Recipe(optimizer=SGD(lr=1)) == Recipe(optimizer=SGD(lr=1.0))
    assert Recipe(optimizer=SGD(lr=1)).identity == Recipe(optimizer=SGD(lr=1.0)).identity


def test_a_class_that_is_in_no_table_cannot_be_part_of_a_recipe():
    class Upside(Mirror):
        pass

    with pytest.raises(
        ArgumentError, match=r"Upside must be in the table of cutmix, cutout, .*, trivialaugment: add it"
    ):
        Upside()


def test_a_part_of_a_recipe_must_have_its_type():
    with pytest.raises(
        ArgumentError, match="optimizer must be of type Optimizer, or an object of its fields, got 'sgd'"
    ):
        Recipe(optimizer="sgd")
    with pytest.raises(ArgumentError, match="optimizer must be of type Optimizer"):
        Recipe(optimizer=Network())


def test_a_list_is_accepted_for_a_tuple():
    assert Recipe(transforms=[Mirror()]) == Recipe(transforms=(Mirror(),))


def test_the_literals_of_the_settings_are_the_names_in_the_tables():
    hints = get_type_hints(Settings)
    assert set(get_args(hints["optimizer"])) == set(OPTIMIZERS)
    assert set(get_args(hints["method"])) == set(METHODS)


def test_a_recipe_does_not_change():
    with pytest.raises(FrozenInstanceError):
        Recipe().seed = 2
    with pytest.raises(FrozenInstanceError):
        Recipe().optimizer.lr = 0.2


def test_names_are_told_apart_by_all_of_a_recipe_except_for_its_seed():
    recipe = Recipe()
    assert recipe.digest == Recipe(seed=5).digest
    others = (Recipe(optimizer=SGD(momentum=0.8)), Recipe(Network(dropout=0.1)), Recipe(averaging=EMA(0.99)))
    assert len({other.digest for other in (recipe, *others)}) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "snapshots"}, "'snapshots': did you mean snapshot"),
        ({"optimizer": "adam"}, "'adam': did you mean adamw"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"cycles": 0}, "cycles must be at least 1, got 0"),
        ({"first_cycle": 0.5}, "first_cycle must be finite and at least 1, got 0.5"),
        ({"first_cycle": float("inf")}, "first_cycle must be finite and at least 1, got inf"),
        ({"later_peak": 0.0}, "later_peak must be more than 0 and at most 1, got 0.0"),
        ({"later_peak": 1.5}, "later_peak must be more than 0 and at most 1, got 1.5"),
        ({"later_peak": 0.5, "method": "single"}, "later_peak must be 1 for the method single, got 0.5"),
        ({"first_cycle": 2, "method": "single"}, "first_cycle must be 1 for the method single, got 2.0"),
        ({"restart_noise": -0.1}, "restart_noise must be finite and at least 0, got -0.1"),
        ({"restart_noise": 0.1, "method": "single"}, "restart_noise must be 0 for the method single, got 0.1"),
        ({"restart_noise": 0.1, "method": "singlecycle"}, "restart_noise must be 0 for the method singlecycle"),
        ({"ema_at_restart": "reset"}, "ema_at_restart must be given with ema only, got 'reset': add ema"),
        ({"sam_every": 2}, "sam_every must be given with sam only, got 2: add sam"),
        ({"sam_moves": "norms"}, "sam_moves must be given with sam only, got 'norms': add sam"),
        ({"sam": 0.1, "sam_moves": "bias"}, "moves must be one of all, norms, got 'bias'"),
        ({"sam": 0.1, "sam_every": 65}, "sam_every must be at most batch=64, got 65"),
        ({"sam": 0.1, "sam_every": 0}, "sam_every must be at least 1, got 0"),
        ({"sam": 0.0}, "sam must have a finite radius greater than 0, got 0.0"),
        ({"ema": 0.9, "ema_at_restart": "anew"}, "at_restart must be one of carried, reset, got 'anew'"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"stem_stride": 0}, "stem_stride must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0 and less than 2 to the 63, got -1"),
        ({"seed": 1 << 63}, "seed must be at least 0 and less than 2 to the 63, got 9223372036854775808"),
        ({"held_out": -1}, "held_out must be at least 0, got -1"),
        ({"held_out_seed": -1}, "held_out_seed must be at least 0, got -1"),
        ({"held_out_seed": 1 << 63}, "held_out_seed must be less than 2 to the 63"),
        ({"padding": -1}, "padding must be at least 0, got -1"),
        (
            {"warmup_epochs": 5, "epochs": 5},
            "warmup_epochs must be less than epochs=5, got 5: use more epochs, or a shorter warm-up",
        ),
        ({"lr": 10**400}, "lr must be a finite number greater than 0, got inf"),
        ({"warmup_epochs": -1}, "warmup_epochs must be at least 0, got -1"),
        ({"weight_decay": -1e-4}, "weight_decay must be finite and at least 0, got -0.0001"),
        ({"weight_decay": float("nan")}, "weight_decay must be finite and at least 0, got nan"),
        ({"weight_decay": float("inf")}, "weight_decay must be finite and at least 0, got inf"),
        ({"lr": 0.0}, "lr must be a finite number greater than 0, got 0.0"),
        ({"lr": float("inf")}, "lr must be a finite number greater than 0, got inf"),
        ({"lr": float("nan")}, "lr must be a finite number greater than 0, got nan"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and less than 1, got -0.1"),
        ({"momentum": 0.0}, "momentum must be more than 0 and less than 1, got 0.0"),
        ({"momentum": 1.0}, "momentum must be more than 0 and less than 1, got 1.0"),
        ({"momentum": 0.9, "optimizer": "adamw"}, "momentum must be given for sgd only, got 0.9 for adamw"),
        ({"label_smoothing": 1.0}, "label_smoothing must be at least 0 and less than 1, got 1.0"),
        ({"ema": 1.0}, "ema must have a decay of more than 0 and less than 1, got 1.0"),
        ({"decays": "some"}, "decays must be one of all, weights, got 'some'"),
        (
            {"transforms": ("flip",)},
            "'flip': choose from cutmix, cutout, jitter, lighting, mirror, mixup, trivialaugment",
        ),
        ({"transforms": ("mirror=1",)}, "transform must be mirror without a setting, got 'mirror=1'"),
        ({"transforms": ("cutout=x",)}, "transform must be cutout or cutout=SIZE, got 'cutout=x'"),
        ({"transforms": ("cutout=8:8",)}, "transform must be cutout or cutout=SIZE, got 'cutout=8:8'"),
        ({"transforms": ("mixup=",)}, "transform must be mixup or mixup=ALPHA:PROBABILITY, got 'mixup='"),
        ({"transforms": ("mixup=0",)}, "alpha must be more than 0 and at most 100, got 0.0"),
        ({"transforms": ("cutmix=101",)}, "alpha must be more than 0 and at most 100, got 101.0"),
        ({"transforms": ("cutmix=1:0.0",)}, "probability must be more than 0 and at most 1, got 0.0"),
        ({"transforms": ("cutout=0",)}, "size must be between 1 and 65536 pixels, got 0"),
        ({"transforms": ("jitter=2.0",)}, "strength must be more than 0 and at most 1, got 2.0"),
        ({"transforms": ("lighting=0.0",)}, "strength must be more than 0 and at most 1, got 0.0"),
        ({"method": "grow"}, r"pattern must be given for the method grow, and for no other, got \(\)"),
        ({"method": "grow", "pattern": ("cold",)}, "pattern must be one of warm, fresh, got 'cold'"),
        ({"pattern": ("warm",)}, r"pattern must be given for the method grow, and for no other, got \('warm',\)"),
        ({"lr": "0.1"}, "lr must be float, got '0.1'"),
        ({"epochs": 2.5}, "epochs must be int, got '2.5'"),
        ({"epochs": True}, "epochs must be int, got 'True'"),
        ({"network": 110}, "name must be str, got '110'"),
    ],
)
def test_a_setting_that_breaks_a_rule_is_named_with_the_rule_and_the_value(settings, message):
    with pytest.raises(ArgumentError, match=message):
        Settings(**settings).recipe()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"recipe must be of type Recipe, or an object of its fields, got '\[\]'"),
        (None, "recipe must be of type Recipe, or an object of its fields, got 'None'"),
        ({"learning_rate": 1}, "unknown field 'learning_rate' of recipe"),
        ({"network": "wrn32", "learning_rate": 1}, "'learning_rate'"),
        ({"network": "wrn32", "ema": 0.9}, "'ema'"),
        ({"network": "wrn32", "pattern": 5}, "pattern must be"),
        ({"network": "wrn32", "pattern": None}, "pattern must be"),
        ({"network": "wrn32", "method": ["a"]}, "method must be one of"),
        ({"network": "wrn32", "lr": "0.1"}, "lr must be float, got '0.1'"),
        ({"network": {"depth": 3}}, "unknown field 'depth' of network"),
        ({"network": 3}, "network must be of type Network, or an object of its fields, got '3'"),
        ({"optimizer": {"kind": "sdg"}}, "'sdg': did you mean sgd"),
        ({"optimizer": {"lr": 0.1}}, "optimizer.*None"),
        ({"optimizer": {"kind": "sgd", "lr": "0.1"}}, "lr must be float, got '0.1'"),
        ({"optimizer": {"kind": "sgd", "lr": None}}, "lr must be float, got 'None'"),
        ({"optimizer": {"kind": []}}, "optimizer"),
        ({"transforms": {"kind": "mirror"}}, "transforms must be"),
        ({"transforms": ["mirror"]}, "transform must be of type Transform, or an object of its fields, got 'mirror'"),
        ({"method": {"kind": "grow", "pattern": ["warm", "cold"]}}, "pattern must be one of warm, fresh, got 'cold'"),
        ({"budget": {"epochs": 1.5}}, "epochs must be int, got '1.5'"),
        ({"objective": {"kind": "distillation"}}, "objective must have the field 'teacher', but it is missing"),
        ({"objective": {"kind": "distillation", "teacher": {"run": "a"}}}, "teacher must have the field 'steps'"),
        ({"seed": "1"}, "seed must be int, got '1'"),
    ],
)
def test_json_that_is_no_recipe_is_rejected(content, message):
    with pytest.raises(ArgumentError, match=message):
        Recipe.of(content)


def test_differences_are_listed_by_setting():
    recipe = Recipe()
    assert recipe.differences(Recipe()) == []
    assert recipe.differences(Recipe(Network("wrn32"), optimizer=SGD(lr=0.2), averaging=EMA(0.9))) == [
        "network.name: 'resnet110', 'wrn32'",
        "optimizer.lr: 0.1, 0.2",
        "averaging.kind: None, 'ema'",
        "averaging.at_restart: None, 'carried'",
        "averaging.decay: None, 0.9",
    ]


@pytest.mark.parametrize(
    ("method", "fresh"),
    [
        (Single(), [True, False, False, False, False]),
        (Snapshot(), [True, False, False, False, False]),
        (SingleCycle(), [True, True, True, True, True]),
        (Grow(pattern=("fresh",)), [True, True, True, True, True]),
        (Grow(pattern=("warm", "fresh")), [True, False, True, False, True]),
        (Grow(pattern=("warm", "warm", "fresh")), [True, False, False, True, False]),
        (Grow(pattern=["warm", "warm", "fresh", "warm"]), [True, False, False, True, False]),
    ],
)
def test_a_cycle_begins_fresh_or_warm_as_the_method_says(method, fresh):
    assert [method.begins_fresh(cycle) for cycle in range(5)] == fresh


def test_schedules_are_the_methods_and_count_whole_batches_of_all_epochs():
    budget = Budget(epochs=50, batch=64, warmup_epochs=3)
    total, warmup = 50 * 1001 // 64, 3 * 1001 // 64
    single = Recipe(method=Single(5), budget=budget).schedule(1001)
    assert single == StepDecay(total, 5, warmup_steps=warmup)
    for method in (Snapshot(5), SingleCycle(5), Grow(5)):
        schedule = Recipe(method=method, budget=budget).schedule(1001)
        assert schedule == CyclicCosine(total, 5, warmup_steps=warmup)
        assert schedule.snapshot_steps == single.snapshot_steps


def test_the_first_cycle_of_a_recipe_can_be_longer_and_have_a_higher_peak():
    recipe = Recipe(
        method=Snapshot(3, first_cycle=2, later_peak=0.5), budget=Budget(epochs=41, batch=10, warmup_epochs=1)
    )
    assert recipe.schedule(100) == CyclicCosine(410, 3, warmup_steps=10, first=2, later_peak=0.5)
    assert recipe.schedule(100).snapshot_steps == (210, 310, 410)
    assert Settings(first_cycle=2, cycles=3, later_peak=0.5).recipe().method == Snapshot(
        3, first_cycle=2.0, later_peak=0.5
    )
    with pytest.raises(ArgumentError, match=r"got 3 steps .* for cycles=2 and first_cycle=2.5: use more epochs"):
        Recipe(method=Snapshot(2, first_cycle=2.5), budget=Budget(epochs=3, batch=10)).schedule(10)


def test_ten_epochs_of_265_images_make_five_cycles_of_eight_or_nine_steps():
    assert Recipe(budget=Budget(epochs=10)).schedule(265).snapshot_steps == (8, 16, 24, 32, 41)


def test_a_budget_of_fewer_steps_than_cycles_is_rejected():
    recipe = Recipe(method=Snapshot(2), budget=Budget(epochs=3, warmup_epochs=2))
    with pytest.raises(ArgumentError, match=r"got 1 steps \(3 epochs of 64 examples .*: use more epochs, fewer cycles"):
        recipe.schedule(64)


def test_a_transform_on_the_command_line_is_its_name_and_its_setting():
    assert [
        named(text)
        for text in (
            "mirror",
            "cutout",
            "cutout=8",
            "jitter=0.3",
            "lighting",
            "trivialaugment",
            "mixup=0.4",
            "cutmix=1:0.5",
        )
    ] == [
        Mirror(),
        Cutout(16),
        Cutout(8),
        ColourJitter(0.3),
        Lighting(0.1),
        TrivialAugment(),
        Mixup(0.4),
        CutMix(1.0, 0.5),
    ]


def test_settings_compose_every_kind_of_value():
    recipe = Settings(optimizer="adamw", ema=0.9, label_smoothing=0.1, transforms=("mirror",), padding=2).recipe()
    assert recipe.optimizer == AdamW()
    assert recipe.averaging == EMA(0.9)
    assert recipe.objective == CrossEntropy(0.1)
    assert recipe.transforms == (Mirror(),)
    assert recipe.dataset == Dataset(padding=2)
    assert Settings().recipe() == Recipe()


def test_the_nearest_names_are_offered_or_all_of_them():
    known = ("resnet110", "wrn32")
    assert "'ResNet101': did you mean resnet110?" in str(unknown("network", "ResNet101", known))
    assert "unknown network '?': choose from resnet110, wrn32" in str(unknown("network", "?", known))


def test_the_documentation_lists_every_setting_with_its_default():
    page = (Path(__file__).parents[3] / "docs/reference/recipes.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|(?: `(.*?)`)? \|", page, re.MULTILINE))
    wanted = {field.name: "" if field.default in ((), None) else str(field.default) for field in fields(Settings)}
    assert {name: rows.get(name) for name in wanted} == wanted


def test_the_documentation_shows_the_flags_of_a_preset():
    page = (Path(__file__).parents[3] / "docs/reference/recipes.md").read_text()
    flags = re.search(r"^\| `cifar100-modern` \| `(.*?)` \|$", page, re.MULTILINE)[1].split()
    assert with_flags_of_preset(["train", "--preset", "cifar100-modern"])[1:-2] == flags


def test_the_help_names_every_network_and_data_set():
    source = Path(settings.__file__).read_text()
    assert all(re.search(rf"\b{name}\b", source) for name in (*NETWORKS, *DATASETS))


def test_a_seed_can_be_replaced():
    assert replace(Recipe(), seed=3).seed == 3


def test_batchnorm_has_at_least_one_part_and_by_default_the_whole_batch():
    assert Recipe(batchnorm_parts=2).identity == '{"batchnorm_parts":2}'
    assert Recipe(batchnorm_parts=2).differences(Recipe()) == ["batchnorm_parts: 2, 1"]
    with pytest.raises(ArgumentError, match="batchnorm_parts must be at least 1, got 0"):
        Recipe(batchnorm_parts=0)
