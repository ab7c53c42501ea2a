"""Finished run folders of cells of the paper; the outputs for 40 test images are drawn at random."""

import numpy as np
import tiny
import torch

from snapens import Snapshots
from snapens.lab.paper import cells as paper
from snapens.lab.records.run import Run

SNAPSHOT = paper.find("densenet40-cifar100-snapshot-0.2").recipe
SINGLE = paper.find("densenet40-cifar100-single").recipe
LABELS = np.random.default_rng(0).integers(0, 10, 40)
MADE = {"pack": 4, "device": "NVIDIA H200", "torch": "2.11.0", "snapens": "0.1.0"}


def finished(folder, recipe=SNAPSHOT, labels=LABELS, trained=7, images=None, **last_words):
    """A run folder as the engine leaves it, its outputs drawn at random."""
    path = folder / paper.run_name(recipe)
    path.mkdir(parents=True)
    images = images or (paper.images(recipe) if recipe.dataset.name in paper.IMAGES else 800)
    run, steps = Run(path), recipe.schedule(images).snapshot_steps
    run.begin(recipe, {**tiny.data().described(), "images": {"train": {"count": images}}})
    rng = torch.Generator().manual_seed(recipe.seed)
    store = Snapshots(path)
    store.open_to_write()
    for step in steps:
        logits = 2 * torch.randn(len(labels), 10, generator=rng) + 2 * torch.eye(10)[torch.from_numpy(labels)]
        store.commit(step, {"weight": torch.full((2,), float(step))})
        run.add_outputs(step, {"test": (logits.log_softmax(-1).half(), torch.from_numpy(labels))})
    store.close()
    for k in range(trained):
        run.note("trained", step=k, epoch=k / 2, lr=0.1 / (k + 1), loss=2.0 ** -min(k, 20), seconds=1.0)
    run.note("finished", step=steps[-1], **{"seconds": 468.75, **MADE, **last_words})
    return run


def softmax(run):
    """(members, examples, classes), in float64."""
    p = np.exp(run.outputs().log_probabilities.astype(np.float64))
    return p / p.sum(-1, keepdims=True)


def percent(p, labels=LABELS):
    """By a loop over the examples."""
    return 100 * sum(int(np.argmax(row) != label) for row, label in zip(p, labels, strict=True)) / len(labels)
