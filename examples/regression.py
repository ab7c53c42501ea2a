"""Regression: the ensemble averages the outputs of its members; where they differ, the prediction is uncertain."""

import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler

torch.manual_seed(0)
x = torch.rand(200, 1) * 4 - 2
y = torch.sin(3 * x) + 0.1 * torch.randn_like(x)
model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(total_steps=1500, cycles=5))

for _ in range(1500):
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    ensembler.step()

ensemble = ensembler.ensemble(activation=None)
inside, outside = torch.linspace(-2, 2, 50)[:, None], torch.linspace(3, 5, 50)[:, None]
error = nn.functional.mse_loss(ensemble(inside), torch.sin(3 * inside)).sqrt()
print(f"root mean squared error inside the range of the data: {error:.3f}")
for name, points in (("inside", inside), ("outside", outside)):
    spread = torch.stack([member(points) for member in ensemble.members]).std(0).mean()
    print(f"mean standard deviation of the members {name} this range: {spread:.3f}")
