"""Tables and look-ups of the results of bench/quality.py."""

import json
from dataclasses import replace

import pytest
from pages import qualities, quality_tables, readme
from pages.qualities import Qualities, Quality

from snapens.errors import ArgumentError
from snapens.lab.recipe.presets import cifar100_modern

WITHOUT_CUTOUT = {"transforms": ("mirror", "trivialaugment")}


def run(errors, seconds=600.0, seeds=None, history=None, **settings):
    """A run of 60 epochs with the given errors of its predictors."""
    recipe = replace(cifar100_modern(), **{"epochs": 60, "held_out": 5000, **settings}).recipe()
    common = {"nll": 0.7, "ece": 0.0421, "calibrated_log_likelihood": -0.69, "mean_members": 3.0}
    content = {
        "recipe": recipe.written(),
        "training": {"seconds": seconds, "device": "NVIDIA H200"},
        "members": [0.2] * recipe.method.cycles * len(seeds or [0]),
        "predictors": {name: {"error": error, **common} for name, error in errors.items()},
    }
    if seeds:
        content["seeds"] = seeds
    if history:
        content["history"] = history
    return Quality(content)


def ensemble(alone, together, **settings):
    return run({"last snapshot": alone, "all snapshots": together}, **settings)


def cosine(error, **settings):
    return run({"last snapshot": error, "all snapshots": error}, cycles=1, **settings)


def cells(table):
    """The cells of the body of a Markdown table."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:] if line[:1] == "|"]


def test_a_run_is_found_by_its_properties():
    plain, cut, long = cosine(0.2), cosine(0.21, **WITHOUT_CUTOUT), cosine(0.19, epochs=120)
    pooled = cosine(0.18, epochs=30, seeds=[0, 1])
    averaged, whole = cosine(0.17, ema=0.999), cosine(0.16, held_out=0)
    every = Qualities((plain, cut, long, pooled, averaged, whole, ensemble(0.3, 0.2)))
    assert every.one(way="cosine", epochs=60, images=45_000, seeds=(0,), averaged=False, changes=()) is plain
    assert every.one(changes=("transforms: mirroring and TrivialAugment",)) is cut
    assert every.one(transforms=("mirror", "trivialaugment")) is cut
    assert every.one(epochs=120) is long
    assert every.one(seeds=(0, 1), epochs=60) is pooled
    assert every.one(averaged=True) is averaged
    assert every.one(images=50_000) is whole
    assert [len(every.among(way=way)) for way in ("cosine", "cycles", "fge")] == [6, 1, 0]


def test_a_look_up_that_finds_none_or_several_runs_fails():
    every = Qualities((cosine(0.2), cosine(0.21, **WITHOUT_CUTOUT)))
    with pytest.raises(ArgumentError, match=r"exactly one run, got {'epochs': 30}, which 0 runs have: check them"):
        every.one(epochs=30)
    with pytest.raises(
        ArgumentError,
        match=r"which 2 runs have \(one cosine, 60 epochs, seeds \(0,\); one cosine, transforms: mirroring",
    ):
        every.one(way="cosine")


def test_runs_are_read_in_the_order_of_their_budgets_and_errors(tmp_path):
    for k, one in enumerate([cosine(0.2, epochs=120), cosine(0.22), cosine(0.21)]):
        (tmp_path / f"{k}.json").write_text(json.dumps(one.content))
    assert [(one.epochs, one["all snapshots"].error) for one in qualities.read(tmp_path)] == [
        (60, "21.00"),
        (60, "22.00"),
        (120, "20.00"),
    ]


def test_the_first_table_is_grouped_by_the_budget_and_marks_its_best_error():
    averaged = {"without averaging": 0.198, "last snapshot": 0.1913, "all snapshots": 0.1913}
    runs = Qualities(
        (
            ensemble(0.1854, 0.1801, epochs=120, seconds=1234.0, ema=0.999),
            run(averaged, cycles=1, ema=0.999, **WITHOUT_CUTOUT),
            ensemble(0.22, 0.21),
            cosine(0.19, epochs=120),
            cosine(0.23, epochs=30),
            ensemble(0.205, 0.195, cycles=1, epochs=30, seeds=[0, 1]),
        )
    )
    assert cells(quality_tables.errors(runs)) == [
        ["30", "one cosine", "10.0", "**23.00**", "–", "–"],
        [
            "60",
            "one cosine, EMA of the weights, transforms: mirroring and TrivialAugment",
            "10.0",
            "19.80",
            "**19.13**",
            "–",
        ],
        ["", "2 independent runs of 30 epochs: one cosine", "10.0", "20.50", "–", "19.50"],
        ["", "Snapshot Ensemble, 3 cycles", "10.0", "22.00", "–", "21.00"],
        ["120", "Snapshot Ensemble, 3 cycles, each snapshot an EMA", "20.6", "–", "18.54", "**18.01**"],
        ["", "one cosine", "10.0", "19.00", "–", "–"],
    ]


def test_runs_that_differ_only_in_their_seeds_share_a_row_with_the_mean_and_the_range():
    final = [
        ensemble(alone, together, seed=seed, held_out=0, seconds=seconds)
        for seed, (alone, together, seconds) in enumerate([(0.19, 0.17, 60), (0.2, 0.176, 120), (0.18, 0.173, 180)])
    ]
    table = quality_tables.errors(Qualities((cosine(0.16), *final)))
    assert cells(table) == [
        ["60", "one cosine", "10.0", "**16.00**", "–", "–"],
        [
            "60, all images",
            "Snapshot Ensemble, 3 cycles (n = 3)",
            "2.0",
            "19.00 (18.00 to 20.00)",
            "–",
            "**17.30** (17.00 to 17.60)",
        ],
    ]
    assert table.endswith(
        "All images: trained on 50,000 images, none of which are held out. "
        "n: the mean over n seeds, with the lowest and the highest error in parentheses."
    )
    assert "n:" not in quality_tables.errors(Qualities((cosine(0.16),)))


def test_the_second_table_shows_one_cosine_with_and_without_its_average():
    errors = {"without averaging": 0.198, "last snapshot": 0.1913, "all snapshots": 0.1913}
    averaged = run(errors, cycles=1, ema=0.999, **WITHOUT_CUTOUT)
    assert [row[:4] for row in cells(quality_tables.details(Qualities((averaged,))))] == [
        ["60", "one cosine, transforms: mirroring and TrivialAugment", "3", "19.80"],
        ["", "… its exponential moving average (EMA)", "3", "**19.13**"],
    ]


def test_the_second_table_has_every_predictor():
    errors = {"all snapshots": 0.2, "last snapshot": 0.22, "weight average": 0.21, "without averaging": 0.23}
    fge = run({**errors, "fitted": 0.205}, epochs=61, first_cycle=10.0, later_peak=0.25, ema=0.999)
    fge.content["predictors"]["fitted"] |= {"mean_members": 1.7553, "outside_auroc": 0.7834}
    final = run({"all snapshots": 0.19, "fitted": 0.189, "last snapshot": 0.2}, epochs=61, held_out=0)
    common = ["0.700", "4.2", "−0.690", "–"]
    assert cells(quality_tables.details(Qualities((fge, final)))) == [
        [
            "61",
            "FGE: one cosine, then 2 cycles of 5 epochs with 0.25 times the peak rate, each snapshot an EMA",
            *["3", "**20.00**", *common],
        ],
        [
            "",
            "… with temperature and early exit, fitted on held-out images",
            *["1.76", "20.50", "0.700", "4.2", "−0.690", "0.783"],
        ],
        ["", "… the last snapshot alone", "3", "22.00", *common],
        ["", "… the average of the snapshots' weights (SWA)", "3", "21.00", *common],
        ["", "… the last weights, without averaging", "3", "23.00", *common],
        ["61, all images", "Snapshot Ensemble, 3 cycles", "3", "19.00", *common],
        [
            "",
            "… with temperature and early exit, fitted on held-out images of another run",
            *["3", "**18.90**", *common],
        ],
        ["", "… the last snapshot alone", "3", "20.00", *common],
    ]


def test_a_predictor_that_one_of_several_seeds_lacks_is_not_shown():
    one = run({"all snapshots": 0.2, "fitted": 0.2, "last snapshot": 0.21}, held_out=0)
    other = run({"all snapshots": 0.22, "last snapshot": 0.23}, held_out=0, seed=1)
    assert [row[1] for row in cells(quality_tables.details(Qualities((one, other))))] == [
        "Snapshot Ensemble, 3 cycles (n = 2)",
        "… the last snapshot alone (n = 2)",
    ]


def test_the_errors_over_time_show_when_a_published_error_is_reached():
    history = [
        {"seconds": 300.0, "error": 0.19, "error_so_far": 0.19},
        {"seconds": 450.0, "error": 0.185, "error_so_far": 0.174},
        {"seconds": 600.0, "error": 0.181, "error_so_far": 0.17},
    ]
    timed = ensemble(0.181, 0.17, history=history)
    text = quality_tables.timeline(timed, 17.41)
    assert (
        "is below 17.41 %, the paper's lowest error on CIFAR-100, for the first time after 7.5 minutes. Run: " in text
    )
    assert "Snapshot Ensemble, 3 cycles; 60 epochs, 45,000 images, seed 0." in text
    assert cells(text.partition("\n\n")[2]) == [
        ["5.0", "1", "19.00", "19.00"],
        ["7.5", "2", "18.50", "17.40"],
        ["10.0", "3", "18.10", "17.00"],
    ]
    assert "never below 17.00 %" in quality_tables.timeline(timed, 17.0)


def test_the_runs_of_a_recipe_are_single_runs_of_the_current_version_if_there_are_any():
    first, second = ensemble(0.18, 0.17), ensemble(0.19, 0.18, seed=1)
    pooled, longer = ensemble(0.17, 0.15, seeds=[0, 1]), ensemble(0.1, 0.1, epochs=120)
    earlier = ensemble(0.16, 0.14)
    earlier.content["remark"] = "another average"
    every = Qualities((second, pooled, longer, earlier, first))
    assert every.of(replace(first.recipe, seed=5)).runs == (first, second)
    assert Qualities((pooled, earlier)).of(first.recipe).runs == (earlier,)
    assert [group.runs for group in every.repetitions() if first in group.runs] == [(first, second)]
    assert earlier.words == "Snapshot Ensemble, 3 cycles, another average"


def test_the_readme_shows_the_mean_of_the_runs_and_the_time_at_which_each_reached_the_published_error():
    history = [{"seconds": 300.0, "error": 0.19, "error_so_far": 0.17}]
    runs = (ensemble(0.18, 0.17, history=history), ensemble(0.19, 0.19, seed=1, seconds=900.0, history=history))
    head, code = readme.modern(Qualities(runs), 17.41).split(":\n\n")
    assert head == (
        "A modern recipe reaches a test error of 18.00 ± 1.41 % on CIFAR-100 after 12 minutes of training on one "
        "NVIDIA H200 (n = 2, 45,000 training images). The lowest error of the paper, 17.41 %, is beaten after "
        "5 minutes. This command trains the model"
    )
    assert code == f"```sh\n{readme.MODERN_COMMAND}\n```"
    runs[0].content["remark"] = "another average"
    assert "images; measured with an earlier version)" in readme.modern(Qualities(runs), 17.41)
    assert "17.00" not in readme.modern(Qualities(runs), 17.0)  # never reached


def test_the_speed_counts_the_epochs_and_images_of_all_runs():
    assert cosine(0.2, seconds=450.0).images_per_second == 6000  # 60 epochs of 45,000 images
    pooled = cosine(0.2, epochs=30, held_out=0, seconds=300.0, seeds=[0, 1])
    assert pooled.images_per_second == 10_000  # two times 30 epochs of 50,000 images
