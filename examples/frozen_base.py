"""Fine-tuning: a frozen base is stored once for all snapshots, and a streamed ensemble reads only the other tensors."""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from snapens import CyclicCosine, Ensemble, SnapshotEnsembler

torch.manual_seed(0)
base = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
model = nn.Sequential(base, nn.Linear(1024, 5))  # in practice, the base has pretrained weights
base.requires_grad_(False)
optimizer = torch.optim.AdamW(model[1].parameters(), lr=1e-3)

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()) / "run"
ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(total_steps=100, cycles=5), store=folder)
for _ in range(100):
    x = torch.randn(64, 32)
    nn.functional.cross_entropy(model(x), x[:, :5].argmax(1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    ensembler.step()

sizes = [path.stat().st_size for path in sorted((folder / "snapshots").iterdir())]
print("bytes per snapshot:", *sizes)

ensemble = Ensemble.load(folder, model, resident=False)  # one replica, in which only the last layer is replaced
x = torch.randn(1000, 32)
accuracy = (ensemble.predict(x.split(100)).argmax(1) == x[:, :5].argmax(1)).float().mean()
print(f"accuracy of the ensemble of {len(ensemble.steps)} members: {accuracy:.1%}")
