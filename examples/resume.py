"""Stop at any step and resume: run this script repeatedly until it has finished.

    python resume.py [FOLDER [STOP_AFTER_STEPS]]

The checkpoint contains the model, the optimizer, the random state and the ensembler; the snapshots are in FOLDER/run.
"""

import sys
from pathlib import Path

import torch
from torch import nn

from snapens import CyclicCosine, Ensemble, SnapshotEnsembler

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/resume")
stop_after = int(sys.argv[2]) if len(sys.argv) > 2 else 10**9
folder.mkdir(parents=True, exist_ok=True)
checkpoint = folder / "checkpoint.pt"

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(300, cycles=3), store=folder / "run", resume=True)
parts = {"model": model, "optimizer": optimizer, "ensembler": ensembler}


def save() -> None:
    state = {"random": torch.get_rng_state(), **{name: part.state_dict() for name, part in parts.items()}}
    torch.save(state, checkpoint.with_suffix(".new"))
    checkpoint.with_suffix(".new").replace(checkpoint)  # the checkpoint is replaced completely or not at all


if checkpoint.exists():
    state = torch.load(checkpoint, weights_only=True)
    torch.set_rng_state(state["random"])
    for name, part in parts.items():
        part.load_state_dict(state[name])
else:
    save()  # before the first step, so that there is always a checkpoint to resume from
print(f"starting at step {ensembler.completed}")

while ensembler.completed < 300 and stop_after > 0:
    nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,))).backward()
    optimizer.step()
    optimizer.zero_grad()
    ensembler.step()
    stop_after -= 1
    if ensembler.completed % 50 == 0:
        save()

if ensembler.completed == 300:
    ensemble = Ensemble.load(folder / "run", model)
    print(f"members {ensemble.steps}, {ensemble(torch.ones(1, 8))[0, 0]:.6f}")
