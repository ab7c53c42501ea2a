"""Train two recipes side by side on your own arrays, and compare the errors of their snapshots and ensembles."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from snapens.lab.data.arrays import from_arrays
from snapens.lab.engine.pack import prepare, train
from snapens.lab.recipe import SGD, Budget, Dataset, Network, Recipe, Single, Snapshot
from snapens.lab.records.run import Run


def stripes(images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Grey images of 16 × 16 pixels with noise and a bar; the direction of the bar is the class."""
    random = np.random.default_rng(seed)
    x, y = random.integers(0, 130, (images, 16, 16), dtype=np.uint8), random.integers(0, 4, images)
    for image, label, place in zip(x, y, random.integers(3, 13, images), strict=True):
        bars = image[place], image[:, place], np.einsum("ii->i", image), np.einsum("ii->i", image[::-1])
        bars[label][:] += 60
    return x, y


data = from_arrays(*stripes(600, seed=0), *stripes(400, seed=1), classes=("across", "down", "falling", "rising"))
snapshot = Recipe(
    Network("small"), Dataset("arrays"), Snapshot(cycles=3), Budget(epochs=12, batch=32), optimizer=SGD(lr=0.1)
)
single = replace(snapshot, method=Single(cycles=3))

folder = Path(tempfile.mkdtemp())
jobs = [(snapshot, folder / "snapshot"), (single, folder / "single")]
train(prepare(jobs, load=lambda recipe: data, device=torch.device("cpu")))

for name in ("snapshot", "single"):
    outputs = Run(folder / name).outputs()
    members = ", ".join(f"{100 * error:.1f}" for error in outputs.member_errors)
    print(f"{name}: test error of the snapshots {members} %, of the ensemble {100 * outputs.ensemble_errors[-1]:.1f} %")
