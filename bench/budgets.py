"""Collects the results of runs that spend budgets in different ways: `python bench/budgets.py RUNS --out FILE`.

RUNS is a folder of finished runs with held-out examples, such as `snapens sweep` writes it. The JSON file has one entry
per recipe, with one value per seed: the error and the NLL of the last snapshot alone and of all snapshots together, on
the held-out and on the test examples. Without early exit and temperature, nothing in these numbers is fitted.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from snapens.errors import MismatchError
from snapens.lab.paper.ledger import is_of_commit
from snapens.lab.recipe.recipe import Recipe
from snapens.lab.records.run import Run, runs_below
from snapens.quality import Score

PARTS = ("held_out", "test")


def main() -> None:
    """Collect the runs of a folder, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a folder of runs")
    parser.add_argument("--commit", required=True, help="the commit that trained the runs")
    parser.add_argument("--hardware", required=True, help="where the runs were trained, such as 'a 2-core CPU'")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    options = parser.parse_args()
    runs = [run for run in runs_below(options.runs) if run.finished]
    for run in runs:
        if is_of_commit(run, options.commit) is False:
            raise MismatchError(f"commit must be that of the code that trained {run.path}, got {options.commit}")
    head = {"commit": options.commit, "hardware": options.hardware, "torch": runs[0].finish_event["torch"]}
    lines = ",\n".join(map(json.dumps, collected(runs)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(f'{json.dumps(head)[:-1]}, "recipes": [\n{lines}\n]}}\n')


def collected(runs: list[Run]) -> list[dict[str, object]]:
    """Finished runs by recipe, shorter budgets first."""
    groups: dict[Recipe, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.recipe.seed):
        groups[replace(run.recipe, seed=0)].append(run)
    return [entry(recipe, groups[recipe]) for recipe in sorted(groups, key=lambda recipe: recipe.budget.epochs)]


def entry(recipe: Recipe, runs: list[Run]) -> dict[str, object]:
    """One recipe, with a value per seed in each list."""
    results: dict[str, dict[str, list[float]]] = {}
    for part in PARTS:
        qualities = [run.outputs(part).quality for run in runs]
        for name, index in (("last", 0), ("all", -1)):
            results[f"{part} {name}"] = columns([quality.last.scores[index] for quality in qualities])
    return {"recipe": recipe.written(), "seeds": [run.recipe.seed for run in runs], **results}


def columns(scores: list[Score]) -> dict[str, list[float]]:
    """The errors in percent, and the NLL."""
    return {
        "error_percent": [round(100 * score.error, 4) for score in scores],
        "nll": [round(score.nll, 5) for score in scores],
    }


if __name__ == "__main__":
    main()
