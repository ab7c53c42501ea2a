"""Compares ways to choose members and weights: `python bench/choices.py RUN … --out FOLDER`.

The script writes one JSON file for each run, which must have held-out and test outputs. Each choice is compared with
the mean of all members, both with a fitted temperature and without early exit:

- on the held-out examples, where the choice is fitted on one half and measured on the other (`combine.gains`),
- on the test examples, after the choice was fitted on all held-out examples.

A gain is positive if the choice is better; ± is the paired standard error.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from snapens import Outputs, combine
from snapens.lab.paper import cells
from snapens.lab.records.run import Run
from snapens.prediction import Prediction

CHOICES = {
    "the last m": {"members": "last"},
    "all but harmful early ones": {"members": "drop-early"},
    "greedy selection": {"members": "greedy"},
    "weights by NLL": {"weights": "simplex"},
}


def measured(run: Run) -> dict[str, object]:
    """Every choice for one run."""
    held_out, test = run.outputs("held_out"), run.outputs("test")
    mean = Prediction.of(test, combine.fit(held_out, exit_loss=None))
    return {
        "recipe": run.recipe.written(),
        "members": len(test.members),
        "mean": {"error": float(mean.wrong.mean()), "nll": float(mean.nll.mean())},
        "choices": {name: compared(held_out, test, mean, options) for name, options in CHOICES.items()},
    }


def compared(held_out: Outputs, test: Outputs, mean: Prediction, options: dict[str, str]) -> dict[str, object]:
    """One choice on the held-out and on the test examples."""
    gain = combine.gains(held_out, exit_loss=None, **options)[-1]
    chosen = combine.fit(held_out, exit_loss=None, **options)
    found = Prediction.of(test, chosen)
    return {
        "members": [held_out.members.index(member) + 1 for member in chosen.members],
        "weights": [share / sum(chosen.shares) for share in chosen.shares],
        "held_out_error_gain": gain.error_gain._asdict(),
        "held_out_nll_gain": gain.nll_gain._asdict(),
        "test_error_gain": difference(mean.wrong, found.wrong),
        "test_nll_gain": difference(mean.nll, found.nll),
    }


def difference(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """The mean difference, and its paired standard error."""
    lower = before.astype(float) - after
    return {"mean": float(lower.mean()), "standard_error": float(lower.std(ddof=1) / np.sqrt(len(lower)))}


def main() -> None:
    """Measure each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the folder for the JSON files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.runs:
        run = Run(path)
        found, name = measured(run), cells.run_name(run.recipe)
        (options.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(name)
        for choice, values in found["choices"].items():
            gains = [values[f"{part}_{what}_gain"] for part in ("held_out", "test") for what in ("error", "nll")]
            shown = "  ".join(f"{gain['mean']:+.4f} ± {gain['standard_error']:.4f}" for gain in gains)
            print(f"  {choice:28} {values['members']!s:18} {shown}")


if __name__ == "__main__":
    main()
