"""Tensors to store, for the tests of snapshots."""

import torch

from snapens import Snapshots


def state(seed: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((3, 2), seed), "count": torch.tensor(int(seed))}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def files(store: Snapshots) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (store.path / "snapshots").iterdir()}
