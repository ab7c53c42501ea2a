import json
import random
import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from snapens import CyclicCosine, StepDecay
from snapens.errors import ArgumentError
from snapens.lab.data import DATASETS
from snapens.lab.nets import NETWORKS
from snapens.lab.recipe import recipe
from snapens.lab.recipe.recipe import METHODS, Recipe, unknown


def some_recipe(rng: random.Random) -> Recipe:
    method = rng.choice(METHODS)
    cycles, warmup_epochs = rng.randint(1, 9), rng.randint(0, 3)
    return Recipe(
        network=rng.choice(["wrn32", "timm:vit", "my.module:Net"]),
        dataset=rng.choice(["cifar10", "Größe/\n\"'"]),
        method=method,
        epochs=cycles + warmup_epochs + rng.randint(0, 200),
        cycles=cycles,
        lr=10 ** rng.uniform(-6, 1),
        batch=rng.randint(1, 300),
        seed=rng.randrange(1 << 63),
        dropout=rng.random(),
        stem_stride=rng.randint(1, 2),
        weight_decay=rng.choice([0, 1e-4, 10 ** rng.uniform(-9, 0)]),
        momentum=rng.uniform(0.01, 0.99),
        warmup_epochs=warmup_epochs,
        pattern=tuple(rng.choices(["warm", "fresh"], k=rng.randint(1, 5))) if method == "grow" else (),
        held_out=rng.randint(0, 5000),
        held_out_seed=rng.randrange(1 << 63),
    )


def test_a_thousand_recipes_come_back_from_json_as_they_were():
    rng = random.Random(0)
    for _ in range(1000):
        recipe = some_recipe(rng)
        again = Recipe.loads(recipe.dumps())
        assert again == recipe
        assert hash(again) == hash(recipe)
        assert again.dumps() == recipe.dumps()


def test_json_holds_every_field_and_missing_ones_have_their_default():
    assert list(json.loads(Recipe().dumps())) == [field.name for field in fields(Recipe)]
    assert Recipe.loads('{"lr": 1}') == Recipe(lr=1.0)
    assert Recipe.loads(b"{}") == Recipe()


def test_a_recipe_does_not_change():
    with pytest.raises(FrozenInstanceError):
        Recipe().lr = 0.2


def test_a_pattern_may_be_any_sequence_and_is_kept_as_a_tuple():
    assert Recipe(method="grow", pattern=["warm", "fresh"]).pattern == ("warm", "fresh")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "snapshots"}, "method must be a known one, got 'snapshots': did you mean snapshot"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"cycles": 0}, "cycles must be at least 1, got 0"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"stem_stride": 0}, "stem_stride must be at least 1, got 0"),
        ({"seed": -1}, "seed must be finite and at least 0, got -1"),
        ({"seed": 1 << 63}, "seed must be less than 2 to the 63, got 9223372036854775808"),
        ({"held_out": -1}, "held_out must be finite and at least 0, got -1"),
        ({"held_out_seed": -1}, "held_out_seed must be finite and at least 0, got -1"),
        ({"held_out_seed": 1 << 63}, "held_out_seed must be less than 2 to the 63"),
        ({"warmup_epochs": -1}, "warmup_epochs must be finite and at least 0, got -1"),
        ({"weight_decay": -1e-4}, "weight_decay must be finite and at least 0, got -0.0001"),
        ({"weight_decay": float("nan")}, "weight_decay must be finite and at least 0, got nan"),
        ({"lr": 0.0}, "lr must be a finite number greater than 0, got 0.0"),
        ({"lr": float("inf")}, "lr must be a finite number greater than 0, got inf"),
        ({"weight_decay": float("inf")}, "weight_decay must be finite and at least 0, got inf"),
        ({"lr": float("nan")}, "lr must be a finite number greater than 0, got nan"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and less than 1, got -0.1"),
        ({"momentum": 0.0}, "momentum must be more than 0 and less than 1, got 0.0"),
        ({"momentum": 1.0}, "momentum must be more than 0 and less than 1, got 1.0"),
        ({"method": "grow"}, r"pattern must be words 'warm' or 'fresh' for the method grow.*got \(\)"),
        ({"method": "grow", "pattern": ("cold",)}, r"pattern must be.*got \('cold',\)"),
        ({"pattern": ("warm",)}, r"pattern must be.*and empty for the others, got \('warm',\)"),
    ],
)
def test_a_setting_that_breaks_a_rule_is_named_with_the_rule_and_the_value(settings, message):
    with pytest.raises(ArgumentError, match=message):
        Recipe(**settings)
    with pytest.raises(ArgumentError, match=message):
        replace(Recipe(), **settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a recipe must be JSON, got"),
        (b"\xff", "a recipe must be JSON, got"),
        ("[" * 100_000, "a recipe must be JSON, got"),
        ("[]", "a recipe must be an object of fields, got list"),
        ("null", "a recipe must be an object of fields, got NoneType"),
        ('{"learning_rate": 1}', "field must be a known one, got 'learning_rate'"),
        ('{"epoch": 1}', "field must be a known one, got 'epoch': did you mean epochs"),
        ('{"epochs": 1.5}', "epochs must be of type int, got 1.5"),
        ('{"epochs": true}', "epochs must be of type int, got True"),
        ('{"epochs": "200"}', "epochs must be of type int, got '200'"),
        ('{"lr": "0.1"}', "lr must be of type float, got '0.1'"),
        ('{"lr": false}', "lr must be of type float, got False"),
        ('{"lr": NaN}', "a recipe must be JSON, got NaN is not JSON"),
        ('{"network": 110}', "network must be of type str, got 110"),
        ('{"method": 1}', "method must be of type text or a list of words, got 1"),
        ('{"pattern": "warm"}', "pattern must be of type text or a list of words, got 'warm'"),
        ('{"pattern": [1]}', r"pattern must be of type text or a list of words, got \[1\]"),
        ('{"pattern": {"warm": 1}}', "pattern must be of type text or a list of words"),
        ('{"method": "grow", "pattern": ["warm", "cold"]}', "pattern must be words 'warm' or 'fresh'"),
    ],
)
def test_json_that_is_no_recipe_is_refused(text, message):
    with pytest.raises(ArgumentError, match=message):
        Recipe.loads(text)


def test_differences_are_listed_by_field():
    recipe = Recipe(lr=0.1, seed=0)
    assert recipe.differences(Recipe(lr=0.1, seed=0)) == []
    assert recipe.differences(replace(recipe, lr=0.2, network="wrn32")) == [
        "network: 'resnet110', 'wrn32'",
        "lr: 0.1, 0.2",
    ]


@pytest.mark.parametrize(
    ("method", "pattern", "fresh"),
    [
        ("single", (), [True, False, False, False, False]),
        ("snapshot", (), [True, False, False, False, False]),
        ("singlecycle", (), [True, True, True, True, True]),
        ("grow", ("fresh",), [True, True, True, True, True]),
        ("grow", ("warm", "fresh"), [True, False, True, False, True]),
        ("grow", ("warm", "warm", "fresh"), [True, False, False, True, False]),
        ("grow", ("warm", "warm", "fresh", "warm"), [True, False, False, True, False]),
    ],
)
def test_a_cycle_begins_fresh_or_warm_as_the_method_says(method, pattern, fresh):
    recipe = Recipe(method=method, pattern=pattern)
    assert [recipe.begins_fresh(cycle) for cycle in range(5)] == fresh


def test_schedules_are_the_methods_and_count_whole_batches_of_all_epochs():
    images = 1001
    settings = {"epochs": 50, "cycles": 5, "batch": 64, "warmup_epochs": 3}
    total, warmup = 50 * 1001 // 64, 3 * 1001 // 64
    single = Recipe(method="single", **settings).schedule(images)
    assert single == StepDecay(total, 5, warmup_steps=warmup)
    for method, pattern in (("snapshot", ()), ("singlecycle", ()), ("grow", ("warm",))):
        schedule = Recipe(method=method, pattern=pattern, **settings).schedule(images)
        assert schedule == CyclicCosine(total, 5, warmup_steps=warmup)
        assert schedule.snapshot_steps == single.snapshot_steps


def test_the_nearest_names_are_offered_or_all_of_them():
    known = ("resnet110", "wrn32")
    assert str(unknown("network", "ResNet101", known)) == (
        "network must be a known one, got 'ResNet101': did you mean resnet110?"
    )
    assert str(unknown("network", "?", known)) == "network must be a known one, got '?': there are resnet110, wrn32"


def test_the_documentation_lists_every_field_with_its_default():
    page = (Path(__file__).parents[3] / "docs/lab.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|(?: `(.*?)`)? \|", page, re.MULTILINE))
    wanted = {name: "" if value == () else str(value) for name, value in vars(Recipe()).items()}
    assert {name: rows.get(name) for name in wanted} == wanted


def test_the_help_names_every_network_and_data_set():
    source = Path(recipe.__file__).read_text()
    assert all(re.search(rf"\b{name}\b", source) for name in (*NETWORKS, *DATASETS))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": "0.1"}, "lr must be of type float, got '0.1'"),
        ({"epochs": 2.5}, "epochs must be of type int, got 2.5"),
        ({"epochs": True}, "epochs must be of type int, got True"),
        ({"network": None}, "network must be of type str, got None"),
        ({"pattern": "warm", "method": "grow"}, "pattern must be of type text or a list of words, got 'warm'"),
    ],
)
def test_a_setting_of_another_type_is_refused(settings, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        Recipe(**settings)


def test_ten_epochs_of_265_images_make_five_cycles_of_eight_or_nine_steps():
    steps = Recipe(network="small", dataset="glyphs", epochs=10, cycles=5).schedule(265).snapshot_steps
    assert steps == (8, 16, 24, 32, 41)


def test_a_budget_of_fewer_steps_than_cycles_is_refused():
    recipe = Recipe(network="small", dataset="glyphs", epochs=3, cycles=2, warmup_epochs=2)
    with pytest.raises(ArgumentError, match=r"got 1 steps \(3 epochs of 64 images .*: use more epochs, fewer cycles"):
        recipe.schedule(64)
