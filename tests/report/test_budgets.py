"""The table and the chart of runs that spend budgets in different ways, and the script that collects the runs."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from pages import budgets

from snapens.cli import main
from snapens.lab.recipe import Settings
from snapens.lab.records.run import Run

BENCH = Path(__file__).parents[2] / "bench/budgets.py"


def entry(last, together, **settings):
    """A recipe with the given test errors of two seeds, of the last snapshot and of all snapshots."""
    recipe = Settings(network="small", dataset="glyphs", held_out=500, **settings).recipe()
    errors = {"last": last, "all": together}
    results = {
        f"{part} {name}": {"error_percent": found, "nll": [1.0, 1.0]}
        for part in ("test", "held_out")
        for name, found in errors.items()
    }
    return {"recipe": recipe.written(), "seeds": [5, 6], **results}


@pytest.fixture
def study(tmp_path):
    recipes = [
        entry([30.0, 32.0], [20.0, 21.0], epochs=10, cycles=3),
        entry([28.0, 28.0], [25.0, 26.0], epochs=10, cycles=1),
        entry([24.0, 26.0], [18.0, 19.0], epochs=10, method="single"),
        entry([24.0, 26.0], [24.0, 26.0], epochs=10, cycles=1, ema=0.99),
        entry([60.0, 62.0], [50.0, 51.0], epochs=10, cycles=3, method="singlecycle"),
        entry([60.0, 62.0], [40.0, 41.0], epochs=10, cycles=6, method="grow", pattern=("warm", "fresh")),
    ]
    path = tmp_path / "study.json"
    path.write_text(json.dumps({"commit": "abc", "hardware": "a CPU", "torch": "2.13", "recipes": recipes}))
    return budgets.read(path)


def test_one_model_is_evaluated_alone_and_several_snapshots_together(study):
    assert study.table.splitlines()[2:] == [
        "| standard schedule | 25.00 ± 1.41 |",
        "| one cosine | 28.00 ± 0.00 |",
        "| one cosine, EMA 0.99 | 25.00 ± 1.41 |",
        "| Snapshot, M = 3 | **20.50 ± 0.71** |",
        "| SingleCycle, M = 3 | 50.50 ± 0.71 |",
        "| Grow, M = 6 | 40.50 ± 0.71 |",
    ]


def test_a_difference_is_computed_seed_by_seed(study):
    snapshot, single = study.of("Snapshot, M = 3", 10), study.of("standard schedule", 10)
    assert snapshot - single == "−4.50 ± 0.71"  # 20 - 24 and 21 - 26
    assert single - snapshot == "+4.50 ± 0.71"


def test_the_script_collects_the_seeds_of_each_recipe(tmp_path, monkeypatch):
    x, y = np.random.default_rng(0).integers(0, 256, (80, 8, 8), dtype=np.uint8), np.arange(80) % 4
    np.savez(tmp_path / "tiny.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    settings = ["--network", "small", "--dataset", "arrays", "--batch", "8", "--held-out", "20", "--cycles", "2"]
    places = ["--data", str(tmp_path / "tiny.npz"), "--out", str(tmp_path / "runs")]
    assert main(["sweep", *settings, "--epochs", "2", "4", "--seed", "3", "1", *places]) == 0

    out = tmp_path / "new/study.json"
    monkeypatch.setattr(
        "sys.argv", [str(BENCH), str(tmp_path / "runs"), "--commit", "abc", "--hardware", "a CPU", "--out", str(out)]
    )
    runpy.run_path(str(BENCH), run_name="__main__")
    found = json.loads(out.read_text())["recipes"]
    assert [one["recipe"]["budget"]["epochs"] for one in found] == [2, 4]
    assert [one["seeds"] for one in found] == [[1, 3], [1, 3]]
    runs = {(run.recipe.budget.epochs, run.recipe.seed): run for run in map(Run, (tmp_path / "runs").iterdir())}
    for one in found:
        for k, seed in enumerate(one["seeds"]):
            outputs = runs[one["recipe"]["budget"]["epochs"], seed].outputs()
            mean = outputs.probabilities.mean(0)
            assert one["test all"]["error_percent"][k] == 100 * (mean.argmax(-1) != y[60:]).mean()
            assert one["test all"]["nll"][k] == pytest.approx(-np.log(mean[range(20), y[60:]]).mean(), abs=1e-5)
            assert one["test last"]["error_percent"][k] == 100 * outputs.member_errors[-1]
