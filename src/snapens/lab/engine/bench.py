"""Measure the training speed of the engine and of plain PyTorch loops, each in its own processes."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from ...errors import ArgumentError
from .. import data, nets
from ..data.augment import AUGMENTATIONS
from ..data.images import ImageData
from ..nets.dense.densenet import DenseNet
from ..recipe.recipe import Recipe
from . import flops
from . import pack as engine
from .processes import apart
from .training import Training

_WARM_UP_SECONDS = 3.0
_TRIAL_SECONDS = 3.0
_PROCESSES = 4
_LONG_STEPS = 200_000
Speed = tuple[str, float | None]
"""What was measured, and its training images per second; None if it cannot be measured here."""


def compare(
    recipe: Recipe, root: Path | None, device: str, pack: int, seconds: float, loops: bool = True
) -> Iterator[Speed]:
    """Measure the plain loops, unless `loops` is false, and the engine, each for `seconds`."""
    arguments = (recipe, root, device, seconds)
    if loops:
        yield from _usual_loops(*arguments)
    for fused in (False, True) if device == "cuda" and _has_kernels(recipe) else (True,):
        alone, packed = apart(1, engine_loop, *arguments, pack, fused)[0]
        name = "engine" if fused else "engine without fused blocks"
        yield f"{name}, one run", alone
        yield f"{name}, a pack of {pack}", packed
    if device == "cuda":
        yield "limit of the matrix products", apart(1, limit, recipe, root)[0]


def _usual_loops(recipe: Recipe, root: Path | None, device: str, seconds: float) -> Iterator[Speed]:
    cores = os.cpu_count() or 1
    candidates = [count for count in (4, 8) if count < cores] or [0]
    arguments = (recipe, root, device, seconds)
    speed, workers = apart(1, plain_loop, *arguments, candidates)[0]
    yield f"plain loop, {workers} workers", speed
    fewer = min(workers, max(cores // _PROCESSES, 1))
    several = apart(_PROCESSES, plain_loop, *arguments, [fewer])
    yield f"{_PROCESSES} plain loops at once, {fewer} workers each", sum(speed for speed, _ in several)
    try:
        yield "Ensemble-PyTorch", apart(1, ensemble_pytorch, *arguments, workers)[0]
    except ArgumentError:
        yield "Ensemble-PyTorch, not installed", None


def plain_loop(
    recipe: Recipe, root: Path | None, device: str, seconds: float, candidates: list[int]
) -> tuple[float, int]:
    """A carefully written plain loop: autocast, channels last, fused SGD, a DataLoader that augments.

    Returns its images per second with the best number of workers, and that number.
    """
    torch.backends.cudnn.benchmark = True
    images = _arrays(recipe, root)
    network = _Network(recipe, images).to(device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        network.parameters(), lr=recipe.optimizer.lr, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True
    )

    def speed(workers: int, seconds: float) -> float:
        watch = _Stopwatch(device, seconds)
        for x, y in _Watched(_loader(recipe, images, workers), watch):
            x = x.to(device, memory_format=torch.channels_last, non_blocking=True)
            y = y.to(device, non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16) if device == "cuda" else nullcontext():
                loss = cross_entropy(network(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        return watch.images_per_second

    trials = {count: speed(count, _TRIAL_SECONDS) for count in candidates} if len(candidates) > 1 else {}
    workers = max(trials, key=lambda count: trials[count], default=candidates[0])
    return speed(workers, seconds), workers


def ensemble_pytorch(recipe: Recipe, root: Path | None, device: str, seconds: float, workers: int) -> float:
    """Ensemble-PyTorch: the `fit` of its SnapshotEnsembleClassifier with the same network and loader."""
    try:
        library = import_module("torchensemble")
    except ImportError as error:
        raise ArgumentError("torchensemble must be installed to be measured: pip install torchensemble") from error
    torch.backends.cudnn.benchmark = True
    images = _arrays(recipe, root)
    ensemble = library.SnapshotEnsembleClassifier(
        estimator=_Network, estimator_args={"recipe": recipe, "images": images}, n_estimators=2, cuda=device == "cuda"
    )
    ensemble.set_optimizer("SGD", lr=recipe.optimizer.lr, momentum=0.9, weight_decay=1e-4)
    watch = _Stopwatch(device, seconds)
    loader = _Watched(_loader(recipe, images, workers), watch)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        ensemble.fit(loader, epochs=1000, log_interval=1 << 30, save_model=False)  # the stopwatch ends the first epoch
    return watch.images_per_second


def engine_loop(
    recipe: Recipe, root: Path | None, device: str, seconds: float, pack: int, fused: bool = True
) -> tuple[float, float]:
    """The engine: one run alone, then a pack of runs with different seeds.

    Without `fused`, this process does not use DenseNet's kernels.
    """
    DenseNet.accelerable = fused
    images = _arrays(recipe, root)
    budget = recipe.budget
    epochs = max(budget.epochs, -(-_LONG_STEPS * budget.batch // len(images.train)))  # no run ends too early
    recipe = replace(recipe, budget=replace(budget, epochs=epochs))
    speeds = []
    for runs in (1, pack):
        with tempfile.TemporaryDirectory() as folder:
            jobs = [(replace(recipe, seed=seed), Path(folder) / str(seed)) for seed in range(runs)]
            trainings = engine.prepare(jobs, lambda recipe: images, torch.device(device))
            watch = _Stopwatch(device, seconds)
            engine.train(trainings, stop=watch.over(trainings))
            for training in trainings:
                if training.failure is not None:
                    raise training.failure
            speeds.append(watch.images_per_second)
    return speeds[0], speeds[1]


def limit(recipe: Recipe, root: Path | None) -> float:
    """The images per second at which a network's matrix products reach the measured peak of the GPU in bfloat16."""
    return flops.peak_per_second(torch.device("cuda")) / flops.per_image(recipe, _arrays(recipe, root))


class _Stopwatch:
    """Counts images from the end of the warm-up to the end of the measurement, then waits for the device."""

    def __init__(self, device: str, seconds: float) -> None:
        self._device, self._seconds = device, seconds
        self._begun = time.monotonic()
        self._start: tuple[float, int] | None = None
        self.images_per_second = 0.0

    def stops(self, images: int) -> bool:
        """Whether the measurement has ended; call it with the number of images trained on so far."""
        now = time.monotonic()
        if self._start is None and now - self._begun >= _WARM_UP_SECONDS:
            self._start = self._waited(), images
        elif self._start is not None and now - self._start[0] >= self._seconds:
            self.images_per_second = (images - self._start[1]) / (self._waited() - self._start[0])
            return True
        return False

    def over(self, trainings: list[Training]) -> Callable[[], bool]:
        """A `stop` function for some runs of the engine."""
        return lambda: self.stops(sum(training.completed * training.recipe.budget.batch for training in trainings))

    def _waited(self) -> float:
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()


class _Watched:
    """A loader that repeats its epochs until the stopwatch ends."""

    def __init__(self, loader: DataLoader[Any], watch: _Stopwatch) -> None:
        self._loader, self._watch, self._images = loader, watch, 0
        self.dataset = loader.dataset

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while not self._watch.images_per_second:
            for x, y in self._loader:
                if self._watch.stops(self._images):
                    return
                self._images += len(y)
                yield x, y


class _Augmented(Dataset[tuple[Tensor, int]]):
    """Images padded, cropped, mirrored and normalised one at a time, as a DataLoader's workers do it."""

    def __init__(self, images: ImageData) -> None:
        self._images, self.classes = images, images.classes
        self._padding = AUGMENTATIONS[images.augmentation].crop.padding
        mean, deviation = images.normalisation()
        self._mean, self._deviation = (torch.tensor(row).view(-1, 1, 1) for row in (mean, deviation))

    def __len__(self) -> int:
        return len(self._images.train)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        pixels = cast(NDArray[np.uint8], self._images.train.pixels)[index]
        x = (torch.from_numpy(pixels).permute(2, 0, 1).float() - self._mean) / self._deviation
        if padding := self._padding:
            top, left, mirrored = torch.randint(0, 2 * padding + 1, (3,)).tolist()
            size = self._images.size
            x = nn.functional.pad(x, (padding,) * 4)[:, top : top + size, left : left + size]
            x = x.flip(2) if mirrored % 2 else x
        return x, int(self._images.train.labels[index])


class _Network(nn.Module):
    """The recipe's network, as a class that a library can instantiate."""

    def __init__(self, recipe: Recipe, images: ImageData) -> None:
        super().__init__()
        self.network = nets.of(recipe, len(images.classes), images.inputs)

    def forward(self, x: Tensor) -> Tensor:
        """(images, channels, height, width) -> (images, classes)."""
        return cast(Tensor, self.network(x))


def _has_kernels(recipe: Recipe) -> bool:
    with torch.device("meta"):
        name = recipe.network.name
        return name in nets.NETWORKS and nets.accelerate(nets.build(name, classes=2))


def _arrays(recipe: Recipe, root: Path | None) -> ImageData:
    name = recipe.dataset.name
    images = data.load(name, root)
    if not isinstance(images, ImageData) or not isinstance(images.train.pixels, np.ndarray):
        raise ArgumentError(f"dataset must be images in memory to be measured, got {name}")
    return images


def _loader(recipe: Recipe, images: ImageData, workers: int) -> DataLoader[Any]:
    return DataLoader(
        _Augmented(images),
        recipe.budget.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=workers > 0,
    )
