"""Predict fast: folded BatchNorm, CUDA graphs on a GPU, and early exit for easy images."""

from dataclasses import replace

import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler
from snapens.predict import Predictor


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a bright square in one of four corners."""
    x, y = 0.8 * torch.randn(count, 1, 8, 8), torch.randint(0, 4, (count,))
    for corner in range(4):
        row, column = 4 * (corner // 2), 4 * (corner % 2)
        x[y == corner, :, row : row + 4, column : column + 4] += 0.7
    return x, y


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(16 * 16, 4)),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(total_steps=90, cycles=3))
for _ in range(90):
    x, y = images(64)
    nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
    optimizer.step()
    optimizer.zero_grad()
    ensembler.step()

ensemble = ensembler.ensemble()
ensemble.combination = replace(ensemble.combination, exit_threshold=0.95)  # combine.fit fits one on held-out data
x, y = images(2000)
predictor = Predictor(ensemble, x[:2])  # the example defines the shape of the inputs
found = predictor(x)  # probabilities (images, classes), and the members used for each image
error = (found.probabilities.argmax(1).cpu() != y).float().mean()
print(f"test error {error:.1%} with {found.members_used.float().mean():.2f} of 3 members per image")
difference = (found.probabilities.cpu() - ensemble.predict([x])).abs().max()
print(f"largest difference from Ensemble.predict: {difference:.0e}")
