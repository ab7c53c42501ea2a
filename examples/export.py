"""Export an ensemble as one ONNX file, and run it with onnxruntime: the number of members is chosen at run time."""

import tempfile
from dataclasses import replace
from pathlib import Path

import onnxruntime
import torch
from torch import nn

from snapens import CyclicCosine, SnapshotEnsembler
from snapens.export import About, to_onnx

torch.manual_seed(0)
x = torch.randn(600, 2)
y = (x[:, 0] * x[:, 1] > 0).long()
train, test = slice(400), slice(400, None)
model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(total_steps=150, cycles=3))
for _ in range(150):
    nn.functional.cross_entropy(model(x[train]), y[train]).backward()
    optimizer.step()
    optimizer.zero_grad()
    ensembler.step()

ensemble = ensembler.ensemble()
outputs = replace(ensemble.outputs([(x[test], y[test])]), part="test")
about = About("two layers", "points in four quadrants", ("odd", "even"), [outputs], "x and y, two numbers")
path = Path(tempfile.mkdtemp()) / "points.onnx"
to_onnx(ensemble, x[:2], path, inputs=["points"], prefixes=True, about=about)

session = onnxruntime.InferenceSession(path)
(found,) = session.run(["probabilities"], {"points": x[test].numpy()})  # (members, examples, classes)
for m, expected in ensemble.anytime(x[test]):
    error = (found[m - 1].argmax(-1) != y[test].numpy()).mean()
    difference = abs(found[m - 1] - expected.numpy()).max()
    print(f"newest {m}: test error {error:.1%}, within 1e-5 of PyTorch: {difference <= 1e-5}")
print("".join(line for line in path.with_name("points.onnx.md").open() if "| test set |" in line))
