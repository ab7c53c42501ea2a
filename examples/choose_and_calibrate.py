"""Fit a combination on held-out data: a calibrated temperature, and easy examples that stop after the first members."""

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
x, y = spirals(300, seed=0)  # few enough that the network becomes too confident
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
plain, fitted = Prediction.of(test_outputs), Prediction.of(test_outputs, ensemble.combination)
for name, found in (("mean of all members", plain), ("fitted combination", fitted)):
    error, nll, ece = found.score.error, found.score.nll, found.score.ece
    print(
        f"{name}: test error {error:.1%}, NLL {nll:.2f}, calibration error {ece:.1%}, {found.used.mean():.1f} members"
    )
assert torch.equal(ensemble.predict(test).argmax(-1), torch.from_numpy(fitted.choice))  # the module does the same
