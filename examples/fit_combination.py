"""Hold out training data, fit how the members are combined on it, and compare on test data with the plain mean."""

import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler, combine
from snapens.combine.soup import Soups
from snapens.errors import BarrierError
from snapens.metrics import risk_coverage
from snapens.prediction import Prediction


def spirals(examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (examples,), generator=generator)
    r = torch.rand(examples, generator=generator)
    angle = 4 * r + y * 2 * torch.pi / 3 + 0.7 * torch.randn(examples, generator=generator)
    return torch.stack([r * angle.cos(), r * angle.sin()], 1), y


torch.manual_seed(0)
x, y = spirals(1000, seed=0)
held_out, test = spirals(1000, seed=1), spirals(2000, seed=2)  # held out: not trained on, and not the test data either
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
outputs, on_test = ensemble.outputs([held_out]), ensemble.outputs([test])

for gain in combine.gains(outputs, members="last"):  # measured on examples that the choice was not fitted on
    print(
        f"{gain.choice}: NLL lower by {gain.nll_gain.mean:.3f} ± {gain.nll_gain.standard_error:.3f}, "
        f"error {gain.error:.1%}, {gain.used:.2f} members"
    )

ensemble.combination = combine.fit(outputs, members="last")  # also accepted by Ensemble.load(..., combination=...)
for name, combination in (("plain mean", None), ("fitted", ensemble.combination)):
    found = Prediction.of(on_test, combination)
    print(
        f"{name}: test error {found.score.error:.1%}, NLL {found.score.nll:.3f}, {found.used.mean():.2f} members, "
        f"area under the risk-coverage curve {risk_coverage(found.confidence, found.wrong).mean():.4f}"
    )

sets = combine.ConformalSets.fit(outputs, ensemble.combination, coverage=0.9)
print(
    f"prediction sets: coverage {sets.measured_coverage(on_test):.3f}, {sets.sets(on_test).sum(1).mean():.2f} classes"
)

try:  # a single network, where the weights can be averaged
    soup = Soups(model, ensembler.snapshots, held_out=[held_out]).greedy()
    print(f"soup: snapshots {soup.members}, held-out error {soup.error:.1%}")
except BarrierError as error:
    print(f"no soup: {error}")
