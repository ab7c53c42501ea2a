"""A report about your own training loop: save the outputs of each snapshot, then run `snapens report FOLDER`."""

import tempfile

import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler, combine


def rings(examples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 2, generator=generator)
    noise = 0.3 * torch.randn(examples, generator=generator)
    return x, torch.bucketize(x.norm(dim=1) + noise, torch.tensor([0.8, 1.6]))


folder = tempfile.mkdtemp()
torch.manual_seed(0)
x, y = rings(1000, seed=0)
model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
schedule = CyclicCosine(total_steps=400, cycles=4)
ensembler = SnapshotEnsembler(model, optimizer, schedule, store=folder)
for _ in range(schedule.total_steps):
    batch = torch.randint(0, len(x), (64,))
    nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
    optimizer.zero_grad()
    ensembler.step()

ensemble = ensembler.ensemble()
held_out = ensemble.outputs([rings(1000, seed=1)]).save(folder, part="held_out")
ensemble.outputs([rings(1000, seed=2)]).save(folder, part="test")
combine.fit(held_out).save(folder)  # the report shows the combination
print(f"The outputs are saved. This command writes the report:\nsnapens report {folder}")
