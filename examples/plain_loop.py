"""A plain loop with four more lines: five cycles on three spirals; prints the errors of snapshots and ensemble."""

import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler


def spirals(examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (examples,), generator=generator)
    r = torch.rand(examples, generator=generator)
    angle = 4 * r + y * 2 * torch.pi / 3 + 0.35 * torch.randn(examples, generator=generator)
    return torch.stack([r * angle.cos(), r * angle.sin()], 1), y


torch.manual_seed(0)
x, y = spirals(1000, seed=0)
test_x, test_y = spirals(2000, seed=1)
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True)

schedule = CyclicCosine(total_steps=1000, cycles=5)
ensembler = SnapshotEnsembler(model, optimizer, schedule)
print(schedule.table(lr=0.2))

for _ in range(schedule.total_steps):
    batch = torch.randint(0, len(x), (64,))
    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
    optimizer.zero_grad()
    if ensembler.step() is not None:  # a cycle has just ended
        outputs = ensembler.ensemble().outputs([(test_x, test_y)])
        alone, together = outputs.member_errors[-1], outputs.ensemble_errors[-1]
        print(f"step {ensembler.completed}: error of this snapshot {alone:.1%}, of the ensemble {together:.1%}")
