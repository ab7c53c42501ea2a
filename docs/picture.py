"""The README's picture: one network on CIFAR-100, trained once with cycles and once with the standard schedule.

    python docs/picture.py train DATA SEED   needs a GPU and DATA/cifar-100-binary; adds a seed to docs/picture.json
    python docs/picture.py draw              writes docs/picture.svg from the first seed there

A Wide-ResNet-16-4, 60 epochs at batch 128, SGD with Nesterov momentum 0.9 and weight decay 5e-4, crops and mirrors.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad, relu

from snapens import CyclicCosine, SnapshotEnsembler, StepDecay, metrics

HERE = Path(__file__).parent
EPOCHS, BATCH, CYCLES, PEAK = 60, 128, 5, 0.1


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inside), nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(outside), nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if inside != outside else None

    def forward(self, x):
        y = relu(self.norm1(x))
        passed = x if self.shortcut is None else self.shortcut(y)
        return self.conv2(relu(self.norm2(self.conv1(y)))) + passed


def network() -> nn.Module:
    widths = [16, 64, 64, 128, 128, 256, 256]
    strides = [1, 1, 2, 1, 2, 1]
    blocks = [Block(a, b, s) for a, b, s in zip(widths, widths[1:], strides, strict=False)]
    head = [nn.BatchNorm2d(256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), *blocks, *head)


def cifar100(folder: Path, name: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    records = np.fromfile(folder / f"cifar-100-binary/{name}.bin", np.uint8).reshape(-1, 3074)
    images = torch.tensor(records[:, 2:].reshape(-1, 3, 32, 32), device=device).float()
    mean, deviation = torch.tensor([[129.3, 124.1, 112.4], [68.2, 65.4, 70.4]], device=device).view(2, 1, 3, 1, 1)
    return (images - mean) / deviation, torch.tensor(records[:, 1], device=device).long()


def augmented(images: torch.Tensor) -> torch.Tensor:
    """Crops of 32 × 32 from images padded with 4 pixels, every second one mirrored."""
    n, device = len(images), images.device
    rows, columns = (torch.randint(0, 9, (n, 1), device=device) + torch.arange(32, device=device) for _ in range(2))
    columns = torch.where(torch.rand(n, 1, device=device) < 0.5, columns, columns.flip(1))
    every = torch.arange(n, device=device).view(n, 1, 1)
    return images.permute(0, 2, 3, 1)[every, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def train(folder: Path, seed: int = 0, device: str = "cuda") -> dict:
    (x, y), (test_x, test_y) = cifar100(folder, "train", device), cifar100(folder, "test", device)
    padded, labels = pad(x, (4, 4, 4, 4)), test_y.cpu()
    steps_per_epoch = len(x) // BATCH
    total = EPOCHS * steps_per_epoch
    result: dict = {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        "seed": seed,
    }
    for name, schedule in (("cyclic", CyclicCosine(total, CYCLES)), ("standard", StepDecay(total))):
        torch.manual_seed(seed)
        start = time.time()
        plain = network().to(device, memory_format=torch.channels_last)
        model = torch.compile(plain)
        optimizer = torch.optim.SGD(model.parameters(), lr=PEAK, momentum=0.9, nesterov=True, weight_decay=5e-4)
        ensembler = SnapshotEnsembler(model, optimizer, schedule)
        epochs, errors, snapshots = [], [], []
        for epoch in range(EPOCHS):
            for batch in torch.randperm(len(x), device=device)[: steps_per_epoch * BATCH].split(BATCH):
                with torch.autocast(device, torch.bfloat16):
                    loss = cross_entropy(model(augmented(padded[batch])), y[batch])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if ensembler.step() is not None:
                    predicted = ensembler.ensemble().predict(test_x.split(500))
                    snapshots.append(100 * float(metrics.error(predicted, labels)))
            plain.eval()
            with torch.no_grad(), torch.autocast(device, torch.bfloat16):
                wrong = sum(
                    (plain(a).argmax(1) != b).sum() for a, b in zip(test_x.split(500), test_y.split(500), strict=True)
                )
            plain.train()
            epochs.append(epoch + 1)
            errors.append(100 * float(wrong) / len(test_y))
            print(f"{name} epoch {epoch + 1} error {errors[-1]:.2f} % {time.time() - start:.0f} s", flush=True)
        result[name] = {"epochs": epochs, "error_percent": errors, "ensemble_error_percent": snapshots}
        result[name]["seconds"] = round(time.time() - start)
    return result


def draw() -> None:
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {"font.size": 10, "font.family": "sans-serif", "svg.fonttype": "none", "svg.hashsalt": "snapens"}
    )
    first = json.loads((HERE / "picture.json").read_text())[0]
    cyclic, standard = first["cyclic"], first["standard"]
    schedule = CyclicCosine(EPOCHS * 100, CYCLES)
    minima = [step / 100 for step in schedule.snapshot_steps]
    ink, red, blue, green = "#444444", "#c8372d", "#7a8b99", "#1a7f4b"
    figure, (rate, error) = plt.subplots(
        2, 1, figsize=(8, 4.6), sharex=True, height_ratios=(1, 2.2), layout="constrained"
    )
    steps = range(EPOCHS * 100)
    rate.plot([s / 100 for s in steps], [PEAK * schedule(s) for s in steps], color=red, lw=1.5)
    rate.set_ylabel("learning rate")
    rate.set_ylim(0, PEAK * 1.08)
    error.plot(standard["epochs"], standard["error_percent"], color=blue, lw=1.5, label="standard schedule, one model")
    error.plot(
        cyclic["epochs"], cyclic["error_percent"], color=red, lw=1.5, label="cyclic schedule, the model in training"
    )
    error.plot(
        minima,
        cyclic["ensemble_error_percent"],
        "o-",
        color=green,
        lw=2,
        ms=6,
        label="ensemble of the snapshots so far",
    )
    finals = (
        (standard["error_percent"][-1], blue),
        (cyclic["error_percent"][-1], red),
        (cyclic["ensemble_error_percent"][-1], green),
    )
    for height, (value, color) in zip((28.5, 25.5, 22.5), finals, strict=True):
        error.annotate(f"{value:.2f} %", (EPOCHS + 0.8, height), color=color, va="center", annotation_clip=False)
    for axis in (rate, error):
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=ink)
        for minimum in minima:
            axis.axvline(minimum, color=ink, lw=0.8, ls=":")
    error.set(
        xlabel="epoch (dotted: a snapshot is kept)",
        ylabel="CIFAR-100 test error, %",
        xlim=(0, EPOCHS + 0.5),
        ylim=(20, 65),
    )
    error.legend(frameon=False, loc="upper right")
    figure.savefig(HERE / "picture.svg", metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1] == "train":
        path = HERE / "picture.json"
        earlier = json.loads(path.read_text()) if path.exists() else []
        path.write_text(json.dumps([*earlier, train(Path(sys.argv[2]), int(sys.argv[3]))]))
    else:
        draw()
