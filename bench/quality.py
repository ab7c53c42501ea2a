"""The quality of finished runs on images, beyond test errors: `python bench/quality.py RUN … --data DIR --out FOLDER`.

The script writes one JSON file per run. With `--together`, it writes one file for all runs, which must differ only in
their seeds and must have been trained one at a time on the same hardware: their members are pooled, and their times are
added. A file of another commit is never replaced: remove it first.

For each predictor, the file contains the error, the NLL, the Brier score, the ECE, the calibrated log-likelihood, the
number of networks per image, and the AUROC with which the entropy separates the run's test images from those of another
data set (`--outside`). For predictors that were not fitted on the held-out images, it also contains the error and the
NLL on these images, so that a predictor can be chosen. The predictors are:

- the last snapshot, and the mean of all snapshots,
- the combination that `combine.fit` fits on the held-out images; for a run without held-out images, the combination in
  its folder, if there is one (`snapens combine --like`),
- one network whose weights are the mean of all snapshots (stochastic weight averaging, SWA), with BatchNorm statistics
  of augmented training images,
- for a run that stores an average of the weights (`--ema`), the last weights without averaging.

For several runs together, the last two predictors are not measured. For each snapshot, the file also contains the
time since the start of training, its error, and the error of all snapshots so far.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from snapens import Combination, Ensemble, Snapshots, combine
from snapens.batchnorm import estimated_statistics
from snapens.combine.evaluation import Evaluation
from snapens.combine.soup import average
from snapens.errors import ArgumentError, MismatchError
from snapens.lab import data as datasets
from snapens.lab.data.images import Images
from snapens.lab.data.placed import PlacedImages
from snapens.lab.engine.feed import Feed, transforms_of
from snapens.lab.engine.network import precision
from snapens.lab.paper import cells, ledger
from snapens.lab.records.run import Run
from snapens.lab.records.runs import require_same_test
from snapens.outputs import Outputs
from snapens.prediction import Prediction, out_of_distribution
from snapens.weights import set_tensors

ESTIMATION_IMAGES = 10_000


class Measured:
    """The quality of one finished run, or of several together."""

    def __init__(self, runs: Sequence[Run], folder: Path, outside: str | None, device: torch.device) -> None:
        check(runs)
        self.runs, self.run, self.recipe, self.device = runs, runs[0], runs[0].recipe, device
        dataset = self.recipe.dataset
        data = datasets.load(dataset.name, folder).hold_out(dataset.held_out, dataset.held_out_seed)
        self.placed: PlacedImages = data.place(device, dataset.padding)
        self.outside_name, self.outside = outside, None if outside is None else datasets.load(outside, folder).test
        self.predictors: dict[str, dict[str, float | None]] = {}

    @property
    def name(self) -> str:
        """The name of the run; for several runs, with all seeds."""
        seeds = "-".join(str(run.recipe.seed) for run in self.runs[1:])
        return cells.run_name(self.recipe) + (f"-{seeds}" if seeds else "")

    def all(self) -> dict[str, object]:
        """Every predictor, and what the runs cost."""
        test = joined([run.outputs("test") for run in self.runs])
        held_out = joined([run.outputs("held_out") for run in self.runs]) if self.recipe.dataset.held_out else None
        outside = None
        if self.outside is not None:
            ensembles = [run.ensemble(raw=False, device=self.device, import_network=True) for run in self.runs]
            outside = joined([self._outputs(ensemble, self.outside) for ensemble in ensembles])
        plain = {"last snapshot": Combination(test.members[-1:]), "all snapshots": Combination(test.members)}
        for name, choice in plain.items():
            self._add(name, choice, test, outside, held_out)
        if (fitted := self._fitted(held_out)) is not None:
            self._add("fitted", fitted, test, outside)
        if len(self.runs) == 1 and len(test.members) > 1:
            self._add_network("weight average", average(map(self.run.snapshots.load, self.run.snapshots.steps)))
        if len(self.runs) == 1 and self.recipe.averaging is not None:
            self._add_network("without averaging", self._trained(), statistics=False)
        return {
            "recipe": self.recipe.written(),
            "seeds": [run.recipe.seed for run in self.runs],
            "outside": self.outside_name,
            "training": self._training(),
            "members": [Evaluation.of(test, Combination((member,))).error for member in test.members],
            "history": self._history(test),
            "predictors": self.predictors,
        }

    def _fitted(self, held_out: Outputs | None) -> Combination | None:
        """The combination that is fitted on held-out images of these runs or, without such images, of another run."""
        if held_out is not None:
            return combine.fit(held_out)
        return Combination.find(self.run.path) if len(self.runs) == 1 else None

    def _training(self) -> dict[str, object]:
        """The hardware and software, and the seconds of all runs."""
        finished = [run.finish_event for run in self.runs]
        found = {name: finished[0].get(name) for name in ("seconds", "device", "torch", "pack")}
        sources = dict.fromkeys(str(event.get("sources")) for event in finished)
        return found | {"seconds": round(sum(event["seconds"] for event in finished), 3), "sources": " ".join(sources)}

    def _history(self, test: Outputs) -> list[dict[str, float]]:
        """Each snapshot and all snapshots so far, as if the runs were trained one after another."""
        found, so_far, before = [], [], 0.0
        for run in self.runs:
            seconds = {line["step"]: line["seconds"] for line in run.log() if line.get("event") == "snapshot"}
            for step in run.snapshots.steps:
                so_far.append((run.identity, step))
                errors = [Prediction.of(test, Combination(tuple(some))).score.error for some in (so_far[-1:], so_far)]
                found.append({"seconds": before + seconds[step], "error": errors[0], "error_so_far": errors[1]})
            before += run.finish_event["seconds"]
        return found

    def _add(
        self,
        name: str,
        choice: Combination,
        test: Outputs,
        outside: Outputs | None,
        held_out: Outputs | None = None,
    ) -> None:
        found = asdict(Evaluation.of(test, choice))
        del found["class_errors"], found["equivalent"]
        if held_out is not None:
            score = Prediction.of(held_out, choice).score
            found |= {"held_out_error": score.error, "held_out_nll": score.nll}
        if outside is not None:
            whole = Combination(choice.members, choice.weights, choice.temperature)  # early exit changes the entropy
            detection = out_of_distribution(Prediction.of(test, whole), Prediction.of(outside, whole))
            found["outside_auroc"] = detection.entropy
        self.predictors[name] = found

    def _add_network(self, name: str, state: dict[str, Tensor], statistics: bool = True) -> None:
        """Add one network with the given weights."""
        last = self.run.ensemble(last=1, raw=False, device=self.device, import_network=True)
        snapshots, network = Snapshots(), last.members[0]
        set_tensors(network, state)
        if statistics:
            transforms = transforms_of(self.recipe, self.placed.data)
            sample = Feed(self.placed, transforms, self.recipe.seed, self.recipe.budget.batch)
            with estimated_statistics(network), precision(self.device):
                for inputs in sample.sample(ESTIMATION_IMAGES):
                    network(inputs)
        snapshots.commit(1, network.state_dict())
        ensemble = Ensemble(snapshots, network, device=self.device)
        data = self.placed.data
        test, outside, held_out = (self._outputs(ensemble, part) for part in (data.test, self.outside, data.held_out))
        self._add(name, Combination(test.members), test, outside, held_out)

    def _outputs(self, ensemble: Ensemble, part: Images | None) -> Outputs | None:
        if part is None:
            return None
        with precision(self.device):
            inputs = list(self.placed.batches(part))
            labels = torch.from_numpy(part.labels).split([len(batch) for batch in inputs])
            return ensemble.outputs(list(zip(inputs, labels, strict=True)))

    def _trained(self) -> dict[str, Tensor]:
        """The weights at the end of training, from the last state."""
        state = self.run.state()
        prefix = "network."
        return {name.removeprefix(prefix): value for name, value in state.tensors.items() if name.startswith(prefix)}


def check(runs: Sequence[Run]) -> None:
    """Check that runs are finished, differ only in their seeds, and were tested on the same images."""
    if unfinished := [run for run in runs if not run.finished]:
        raise ArgumentError(f"runs must be finished, got {unfinished[0].path}: continue it with --resume")
    recipes = [replace(run.recipe, seed=0) for run in runs]
    if len({run.recipe.seed for run in runs}) < len(runs) or any(recipe != recipes[0] for recipe in recipes):
        raise ArgumentError(
            f"runs must have different seeds and no other difference, got {', '.join(str(run.path) for run in runs)}: "
            "choose other runs, or leave out --together"
        )
    hardware = [{name: run.finish_event.get(name) for name in ("device", "torch", "pack")} for run in runs]
    if len(runs) > 1 and (hardware[0]["pack"] != 1 or any(other != hardware[0] for other in hardware)):
        raise ArgumentError(
            "runs must have been trained one at a time (pack 1) on the same device with the same torch, got "
            f"{'; '.join(map(str, hardware))}: their times cannot be added, so leave out --together"
        )
    for run in runs[1:]:
        require_same_test(runs[0], runs[0].outputs("test").labels, run, run.outputs("test").labels)


def store(path: Path, commit: str, found: dict[str, object]) -> None:
    """Write a file, unless there is one of another commit."""
    if path.exists() and (before := json.loads(path.read_text())["commit"]) != commit:
        raise ArgumentError(
            f"out must have no results of another commit, got {path} of commit {before}: remove it, or choose another "
            "folder"
        )
    path.write_text(json.dumps({"commit": commit, **found}, indent=1) + "\n")


def joined(outputs: Sequence[Outputs]) -> Outputs:
    """The outputs of all members for the same examples; the runs take turns, the oldest members first."""
    found = [(member, k, row) for k, one in enumerate(outputs) for row, member in enumerate(one.members)]
    found.sort(key=lambda place: place[0][1])
    rows = np.stack([outputs[k].log_probabilities[row] for _, k, row in found])
    return Outputs(tuple(member for member, _, _ in found), rows, outputs[0].labels, outputs[0].part)


def main() -> None:
    """Measure each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the data sets")
    parser.add_argument("--outside", help="a data set whose test images do not belong to the classes of the runs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--together", action="store_true", help="pool the members of all runs")
    parser.add_argument("--commit", required=True, help="the commit that trained the runs")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the JSON files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = [Run(path) for path in options.runs]
    for run in runs:
        if ledger.is_of_commit(run, options.commit) is False:
            raise MismatchError(f"commit must be that of the code that trained {run.path}, got {options.commit}")
    for group in [runs] if options.together else [[run] for run in runs]:
        measured = Measured(group, options.data, options.outside, torch.device(options.device))
        found, name = measured.all(), measured.name
        store(options.out / f"{name}.json", options.commit, found)
        for predictor, quality in found["predictors"].items():
            print(f"{name}  {predictor:20} error {100 * quality['error']:6.2f} %  NLL {quality['nll']:.4f}")


if __name__ == "__main__":
    main()
