"""Measure the time of a prediction: by one model, by an Ensemble, and by a Predictor."""

import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from statistics import mean, median
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...combination import Combination
from ...ensemble import Ensemble
from ...errors import ArgumentError
from ...predict import Predictor
from ...snapshots import Snapshots
from ...weights import tensors
from .. import data, nets
from ..records.run import Run
from .network import precision

ONE = "one model"
_WARM_UP_CALLS = 3
_FEWEST_CALLS = 10
_EVALUATED_AT_ONCE = 1024
_SIDE, _CLASSES = 32, 100  # of random images, and of the networks that are built for them


@dataclass(frozen=True)
class Timing:
    """The time of a prediction for one batch."""

    what: str
    batch: int
    median_ms: float
    mean_ms: float
    calls: int


@dataclass(frozen=True)
class Quality:
    """The quality of predictions on labelled examples."""

    error_percent: float
    members_used: float
    """The mean over the examples."""
    more_errors_percent: float
    """Compared with all members."""
    standard_error_percent: float
    """The standard error of that difference, which is paired: both predictions are for the same examples."""

    def __str__(self) -> str:
        return (
            f"{self.members_used:.2f} members per example, error {self.error_percent:.2f} % "
            f"({self.more_errors_percent:+.2f} ± {self.standard_error_percent:.2f} compared with all members)"
        )


class Subject:
    """An ensemble on a device with inputs for it, and the predictors that are compared."""

    def __init__(
        self, ensemble: Ensemble, inputs: Tensor, labels: Tensor | None, sizes: Sequence[int], kernels: bool
    ) -> None:
        self.ensemble, self.inputs, self.labels = ensemble, inputs, labels
        self._device = inputs.device
        accelerate = nets.accelerate if kernels else None
        combination = ensemble.combination
        ensemble.combination = replace(combination, exit_threshold=None)
        self.full = Predictor(ensemble, inputs, sizes=sizes, accelerate=accelerate)
        ensemble.combination = combination
        self.exit = None
        if combination.exit_threshold is not None:
            self.exit = Predictor(ensemble, inputs, accelerate=accelerate)
        self._model = deepcopy(ensemble.members[-1])
        if inputs.ndim == 4:
            self._model = self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def timings(self, batch: int, seconds: float) -> Iterator[Timing]:
        """Time each kind of prediction for batches of one size; the first is one model as a plain forward pass."""
        count = len(self.ensemble.members)
        calls: dict[str, Callable[[Tensor], Any]] = {
            ONE: self._eagerly(self._model),
            f"Ensemble of {count}": self._eagerly(self.ensemble),
            f"Predictor of {count}": self.full,
        }
        if self.exit is not None:
            calls["Predictor with early exit"] = self.exit
        for what, call in calls.items():
            yield self._timed(what, call, batch, seconds)

    def qualities(self) -> Iterator[tuple[str, Quality]]:
        """The quality of the predictors on the labelled inputs."""
        if self.labels is None:
            return
        wrong_with_all: Tensor | None = None
        for what, predict in (("all members", self.full), ("early exit", self.exit)):
            if predict is None:
                continue
            parts = [predict(part) for part in torch.split(self.inputs, _EVALUATED_AT_ONCE)]
            found = torch.cat([part.probabilities for part in parts])
            used = torch.cat([part.members_used for part in parts])
            wrong = (found.argmax(1) != self.labels).double()
            wrong_with_all = wrong if wrong_with_all is None else wrong_with_all
            more = 100 * (wrong - wrong_with_all)
            yield (
                what,
                Quality(
                    100 * float(wrong.mean()),
                    float(used.double().mean()),
                    float(more.mean()),
                    float(more.std() / len(more) ** 0.5),
                ),
            )

    def _eagerly(self, module: nn.Module) -> Callable[[Tensor], Any]:
        def call(inputs: Tensor) -> Any:
            with torch.no_grad(), precision(self._device):
                return module(inputs)

        return call

    def _timed(self, what: str, call: Callable[[Tensor], Any], batch: int, seconds: float) -> Timing:
        batches = cycle(part for part in torch.split(self.inputs, batch) if len(part) == batch)
        for _ in range(_WARM_UP_CALLS):
            call(next(batches))
        found: list[float] = []
        while sum(found) < seconds or len(found) < _FEWEST_CALLS:
            inputs = next(batches)
            begin = self._waited()
            call(inputs)
            found.append(self._waited() - begin)
        return Timing(what, batch, 1000 * median(found), 1000 * mean(found), len(found))

    def _waited(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def of_network(name: str, members: int, batches: Sequence[int], device: torch.device) -> Subject:
    """Random weights and random images, for which early exit is not meaningful."""
    snapshots = Snapshots()
    for seed in range(members):
        network = nets.build(name, classes=_CLASSES, seed=seed)
        snapshots.commit(seed + 1, tensors(network))
    ensemble = Ensemble(snapshots, network, device=device)
    inputs = torch.randn(2 * max(batches), 3, _SIDE, _SIDE, device=device)
    return Subject(ensemble, _laid_out(inputs), None, batches, name in nets.NETWORKS)


def of_run(
    path: Path, root: Path | None, threshold: float | None, batches: Sequence[int], device: torch.device
) -> Subject:
    """The snapshots of a run, and the test examples if the data are in `root`, otherwise random inputs.

    The combination is that of the folder, if it has one; `threshold` replaces its threshold.
    """
    run = Run(path)
    ensemble = run.ensemble(combination=Combination.find(path), raw=False, device=device, import_network=True)
    if threshold is not None:
        ensemble.combination = replace(ensemble.combination, exit_threshold=threshold)
    kernels = run.recipe.network.name in nets.NETWORKS
    if root is None:
        random = torch.randn(2 * max(batches), *run.preprocessing.input_shape, device=device)
        ensemble.combination = replace(ensemble.combination, exit_threshold=None)  # random inputs say nothing about it
        return Subject(ensemble, _laid_out(random), None, batches, kernels)
    dataset = run.recipe.dataset
    placed = data.load(dataset.name, root).hold_out(dataset.held_out, dataset.held_out_seed).place(device, None)
    examples = torch.cat(list(placed.batches(placed.data.test)))
    if len(examples) < max(batches):
        raise ArgumentError(
            f"batches must be at most {len(examples)} (the test examples), got {max(batches)}: use smaller ones"
        )
    labels = torch.from_numpy(cast(np.ndarray[Any, Any], placed.data.test.labels)).to(device)
    return Subject(ensemble, _laid_out(examples), labels, batches, kernels)


def _laid_out(inputs: Tensor) -> Tensor:
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs
