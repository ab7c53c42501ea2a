"""Train two recipes side by side on arrays of your own, and see what the snapshots are worth."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from snapens.lab.data.arrays import from_arrays
from snapens.lab.engine.pack import prepare, train
from snapens.lab.recipe.recipe import Recipe
from snapens.lab.records.run import Run


def stripes(images: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Grey images of 16 × 16 pixels: noise, and a bar whose direction is the class."""
    random = np.random.default_rng(seed)
    x, y = random.integers(0, 130, (images, 16, 16), dtype=np.uint8), random.integers(0, 4, images)
    for image, label, place in zip(x, y, random.integers(3, 13, images), strict=True):
        bars = image[place], image[:, place], np.einsum("ii->i", image), np.einsum("ii->i", image[::-1])
        bars[label][:] += 60
    return x, y


data = from_arrays(*stripes(600, seed=0), *stripes(400, seed=1), classes=("across", "down", "falling", "rising"))
snapshot = Recipe(network="small", dataset="arrays", method="snapshot", epochs=12, cycles=3, lr=0.1, batch=32)
single = replace(snapshot, method="single")

folder = Path(tempfile.mkdtemp())
jobs = [(snapshot, folder / "snapshot"), (single, folder / "single")]
train(prepare(jobs, load=lambda recipe: data, device=torch.device("cpu")))

for name in ("snapshot", "single"):
    outputs = Run(folder / name).outputs()
    members = ", ".join(f"{100 * error:.1f}" for error in outputs.member_errors)
    print(f"{name}: snapshots {members} %, together {100 * outputs.ensemble_errors[-1]:.1f} %")
