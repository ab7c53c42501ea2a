"""Find uncertain predictions and out-of-distribution inputs, fit prediction sets, and average weights."""

import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler, combine
from snapens.combine.soup import Soups
from snapens.errors import BarrierError
from snapens.metrics import risk_coverage
from snapens.prediction import Prediction, out_of_distribution


def spirals(examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (examples,), generator=generator)
    r = torch.rand(examples, generator=generator)
    angle = 4 * r + y * 2 * torch.pi / 3 + 0.7 * torch.randn(examples, generator=generator)
    return torch.stack([r * angle.cos(), r * angle.sin()], 1), y


torch.manual_seed(0)
x, y = spirals(1000, seed=0)
held_out, test = [spirals(1000, seed=1)], [spirals(2000, seed=2)]  # lists of batches, as loaders are
for_sets = [spirals(1000, seed=3)]  # other held-out examples, so that the coverage holds
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)
ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(total_steps=1000, cycles=5))
for _ in range(1000):
    batch = torch.randint(0, len(x), (64,))
    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
    optimizer.zero_grad()
    ensembler.step()

ensemble = ensembler.ensemble()
on_held_out, on_test = ensemble.outputs(held_out), ensemble.outputs(test)
combination = combine.fit(on_held_out, exit_loss=None)  # a temperature; all members are evaluated
found = Prediction.of(on_test, combination)

risk = risk_coverage(found.confidence, found.wrong)  # the error on the n most confident examples
print(f"error on all examples {risk[-1]:.1%}, on the more confident half {risk[len(risk) // 2 - 1]:.1%}")

other = [(0.1 * torch.randn(2000, 2), torch.zeros(2000, dtype=torch.long))]  # between the spirals; labels are not used
detected = out_of_distribution(found, Prediction.of(ensemble.outputs(other), combination))
print(f"AUROC of other inputs: entropy {detected.entropy:.2f}, mutual information {detected.mutual_information:.2f}")

sets = combine.ConformalSets.fit(ensemble.outputs(for_sets), combination, coverage=0.9)
print(f"prediction sets for a coverage of 0.9: measured coverage {sets.measured_coverage(on_test):.3f}")

try:  # one network with averaged weights, if the error barrier is low enough
    soup = Soups(model, ensembler.snapshots, held_out=held_out).greedy()
    print(f"soup of the snapshots {soup.members}: held-out error {soup.error:.1%}")
except BarrierError as error:
    print(f"no soup: {error}")
