"""The quality of finished runs on images, beyond test errors: `python bench/quality.py RUN … --data DIR --out FOLDER`.

The script writes one JSON file per run. For each predictor, the file contains the error, the NLL, the Brier score, the
ECE, the calibrated log-likelihood, the number of networks per image, and the AUROC with which the entropy separates the
run's test images from those of another data set (`--outside`). For predictors that were not fitted on the held-out
images, it also contains the error and the NLL on these images, so that a predictor can be chosen. The predictors are:

- the last snapshot, and the mean of all snapshots,
- the combination that `combine.fit` fits on the held-out images, if the run has some, by default and without early
  snapshots that raise the NLL,
- one network whose weights are the mean of all snapshots (stochastic weight averaging, SWA), with BatchNorm statistics
  of augmented training images,
- for a run that stores an average of the weights (`--ema`), the last weights without averaging.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from snapens import Combination, Ensemble, Snapshots, combine
from snapens.batchnorm import estimated_statistics
from snapens.combine.evaluation import Evaluation
from snapens.combine.soup import average
from snapens.lab import data as datasets
from snapens.lab.data.images import Images
from snapens.lab.data.placed import PlacedImages
from snapens.lab.engine.feed import Feed
from snapens.lab.engine.network import precision
from snapens.lab.paper import cells
from snapens.lab.records.run import Run
from snapens.outputs import Outputs
from snapens.prediction import Prediction, out_of_distribution
from snapens.weights import set_tensors

ESTIMATION_IMAGES = 10_000


class Measured:
    """The quality of one finished run."""

    def __init__(self, run: Run, folder: Path, outside: str | None, device: torch.device) -> None:
        dataset = run.recipe.dataset
        data = datasets.load(dataset.name, folder).hold_out(dataset.held_out, dataset.held_out_seed)
        self.run, self.recipe, self.device = run, run.recipe, device
        self.placed: PlacedImages = data.place(device, dataset.padding)
        self.outside_name, self.outside = outside, None if outside is None else datasets.load(outside, folder).test
        self.predictors: dict[str, dict[str, float | None]] = {}

    def all(self) -> dict[str, object]:
        """Every predictor, and what the run cost."""
        test, ensemble = self.run.outputs("test"), self.run.ensemble(raw=False, device=self.device)
        held_out = self.run.outputs("held_out") if self.recipe.dataset.held_out else None
        outside = self._outputs(ensemble, self.outside)
        plain = {"last snapshot": Combination(test.members[-1:]), "all snapshots": Combination(test.members)}
        fitted = {}
        if held_out is not None:
            fitted["fitted"] = combine.fit(held_out)
            fitted["fitted, drop-early"] = combine.fit(held_out, members="drop-early")
        for name, choice in plain.items():
            self._add(name, choice, test, outside, held_out)
        for name, choice in fitted.items():
            self._add(name, choice, test, outside)
        if len(test.members) > 1:
            self._add_network("weight average", average(map(self.run.snapshots.load, self.run.snapshots.steps)))
        if self.recipe.averaging is not None:
            self._add_network("without averaging", self._trained(), statistics=False)
        finished = self.run.finish_event or {}
        return {
            "recipe": self.recipe.written(),
            "outside": self.outside_name,
            "training": {name: finished.get(name) for name in ("seconds", "device", "torch", "pack", "sources")},
            "members": [Evaluation.of(test, Combination((member,))).error for member in test.members],
            "prefixes": [Evaluation.of(test, Combination.last(m + 1)).error for m in range(len(test.members))],
            "predictors": self.predictors,
            "combinations": {name: asdict(choice) for name, choice in fitted.items()},
        }

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
        snapshots, network = Snapshots(), self.run.ensemble(last=1, raw=False, device=self.device).members[0]
        set_tensors(network, state)
        if statistics:
            sample = Feed(self.placed, self._transforms, self.recipe.seed, self.recipe.budget.batch)
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

    @property
    def _transforms(self) -> tuple:
        chosen = self.recipe.transforms
        return self.placed.data.transforms if chosen is None else chosen


def main() -> None:
    """Measure each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the data sets")
    parser.add_argument("--outside", help="a data set whose test images do not belong to the classes of the runs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--commit", help="the commit that trained the runs")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the JSON files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.runs:
        run = Run(path)
        found = Measured(run, options.data, options.outside, torch.device(options.device)).all()
        name = cells.run_name(run.recipe)
        (options.out / f"{name}.json").write_text(json.dumps({"commit": options.commit, **found}, indent=1) + "\n")
        for predictor, quality in found["predictors"].items():
            print(f"{name}  {predictor:20} error {100 * quality['error']:6.2f} %  NLL {quality['nll']:.4f}")


if __name__ == "__main__":
    main()
