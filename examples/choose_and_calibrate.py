"""Fit a combination on held-out data: a temperature for calibrated probabilities, and early exit for easy examples."""

import tempfile

import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler, combine
from snapens.prediction import Prediction


def spirals(examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (examples,), generator=generator)
    r = torch.rand(examples, generator=generator)
    angle = 4 * r + y * 2 * torch.pi / 3 + 0.9 * torch.randn(examples, generator=generator)
    return torch.stack([r * angle.cos(), r * angle.sin()], 1), y


torch.manual_seed(0)
x, y = spirals(300, seed=0)  # so few that the network becomes too confident
held_out, test = [spirals(1000, seed=1)], [spirals(2000, seed=2)]  # lists of batches, as loaders are
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
folder = tempfile.mkdtemp()
ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(total_steps=2000, cycles=5), store=folder)
for _ in range(2000):
    batch = torch.randint(0, len(x), (64,))
    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
    optimizer.zero_grad()
    ensembler.step()

ensemble = ensembler.ensemble()
outputs = ensemble.outputs(held_out).save(folder, part="held_out")  # now `snapens combine` and `report` can read them
for gain in combine.gains(outputs):
    lower, error = gain.nll_gain
    print(f"{gain.choice}: NLL lower by {lower:.3f} ± {error:.3f}, {gain.used:.1f} members per example")
ensemble.combination = combine.fit(outputs)
ensemble.combination.save(folder)

test_outputs = ensemble.outputs(test)
for name, combination in (
    ("mean of all members", None),
    ("with a temperature", combine.fit(outputs, exit_loss=None)),
    ("with a temperature and early exit", ensemble.combination),
):
    found = Prediction.of(test_outputs, combination)
    error, nll, used = found.score.error, found.score.nll, found.used.mean()
    print(f"{name}: test error {error:.1%}, NLL {nll:.3f}, {used:.1f} members per example")
assert torch.equal(ensemble.predict(test).argmax(-1), torch.from_numpy(found.choice))  # the ensemble predicts the same
