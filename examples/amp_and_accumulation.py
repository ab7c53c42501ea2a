"""Mixed precision and gradient accumulation: call step() once per attempted optimizer step, not per micro-batch."""

import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler

MICRO_BATCHES = 4

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
half = device == "cuda"  # on the CPU, this example runs in float32
x, y = torch.randn(4096, 16, device=device), torch.randint(0, 4, (4096,), device=device)
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, enabled=half)

ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(total_steps=60, cycles=3))
while ensembler.completed < ensembler.schedule.total_steps:
    for _ in range(MICRO_BATCHES):
        batch = torch.randint(0, len(x), (32,), device=device)
        with torch.autocast(device, torch.float16, enabled=half):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch]) / MICRO_BATCHES
        scaler.scale(loss).backward()
    scaler.step(optimizer)  # skips the update if a gradient overflows; step() counts it nevertheless
    scaler.update()
    optimizer.zero_grad()
    if (step := ensembler.step()) is not None:
        print(f"stored the snapshot of step {step}, scale {scaler.get_scale():.0f}")

ensemble = ensembler.ensemble()
for k, probabilities in ensemble.anytime(x[:5]):  # stop when the prediction is good enough
    print(f"after {k} members: predicted classes {probabilities.argmax(-1).tolist()}")
