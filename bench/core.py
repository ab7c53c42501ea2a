"""Measures the cost of the core, as ratios of two measurements in one process: `make bench`.

1. step(), compared with the optimizer's own step, for a network of 100 tensors (target: less than 30 µs).
2. commit() of 27 million parameters, compared with writing and syncing as many bytes (target: at most 1.5 ×).
3. The 500th commit() of a run, compared with the 10th; 90 of 100 tensors are frozen (target: at most 2 ×).
4. The peak memory that a streamed ensemble of 10 adds to the process (target: at most 1.3 models; Linux).
5. predict() of five resident members, from a loader that decompresses its images, compared with a pass over the loader
   and the five networks called once per batch (target: at most 1.1 ×).
"""

import os
import platform
import statistics
import tempfile
import time
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from snapens import CyclicCosine, Ensemble, SnapshotEnsembler, Snapshots
from snapens.weights import tensors


def seconds(action) -> float:
    os.sync()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def bench_step(repeats: int = 15, steps: int = 1000) -> str:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(50)))
    model(torch.randn(8, 32)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(10**9, 5))

    def repeated(action):
        for _ in range(steps):
            action()

    pairs = [
        (seconds(lambda: repeated(optimizer.step)), seconds(lambda: repeated(ensembler.step))) for _ in range(repeats)
    ]
    theirs, ours = (statistics.median(column) / steps * 1e6 for column in zip(*pairs, strict=True))
    return f"step(): {ours:.1f} µs, {ours / theirs:.1%} of the optimizer's {theirs:.0f} µs"


def bench_commit(folder: Path, repeats: int = 8) -> str:
    weights = {f"layer{k}": torch.randn(272_490) for k in range(100)}
    size = sum(tensor.nbytes for tensor in weights.values())
    store = Snapshots(folder / "commits")
    store.open_to_write()

    def write():
        with open(folder / f"block{len(pairs)}", "wb") as file:  # a new file, as a snapshot is
            for tensor in weights.values():
                file.write(tensor.numpy().data)
            file.flush()
            os.fsync(file.fileno())

    def commit():
        store.commit(len(store.steps) + 1, weights)

    pairs: list[tuple[float, ...]] = []
    for _ in range(repeats):
        for tensor in weights.values():
            tensor.add_(1.0)
        if len(pairs) % 2:
            pairs.append((seconds(write), seconds(commit)))
        else:
            pairs.append((seconds(commit), seconds(write))[::-1])
    plain, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    return f"commit(): {ratio:.2f} × writing {size / 1e6:.0f} MB and fsync ({ours:.3f} s against {plain:.3f} s)"


def bench_growth(folder: Path, snapshots: int = 505) -> str:
    weights = {f"layer{k}": torch.randn(1000) for k in range(100)}
    store = Snapshots(folder / "long")
    store.open_to_write()

    taken = []
    for step in range(1, snapshots + 1):
        for tensor in list(weights.values())[90:]:
            tensor.add_(1.0)
        start = time.perf_counter()
        store.commit(step, weights)
        taken.append(time.perf_counter() - start)
    early, late = (1e3 * statistics.median(taken[step - 5 : step + 5]) for step in (10, 500))
    size = (store.path / "manifest.json").stat().st_size
    return (
        f"commit() of the 500th snapshot: {late / early:.2f} × the 10th ({late:.1f} ms against {early:.1f} ms), "
        f"a manifest of {size / 1e3:.0f} kB"
    )


def bench_streaming(folder: Path, members: int = 10) -> str:
    if not Path("/proc/self/clear_refs").exists():
        return "streamed ensemble: skipped, its peak is measured on Linux only"
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(26))).eval()
    size = sum(tensor.nbytes for tensor in tensors(model).values())
    store = Snapshots(folder / "members")
    store.open_to_write()
    for step in range(1, members + 1):
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.add_(1e-3)
        store.commit(step, tensors(model))
    batches = [torch.randn(64, 1024)] * 2

    def alone():
        with torch.no_grad():
            for batch in batches:
                model(batch)

    def streamed():
        Ensemble.load(folder / "members", model, resident=False).predict(batches)

    streamed()  # what torch allocates once and for all is not the ensemble's
    before, after = peak(alone), peak(streamed)
    return (
        f"streamed ensemble of {members}: {(after - before) / size:.2f} models added to the peak of {size / 1e6:.0f} MB"
    )


class Compressed(Dataset):
    """Images that are decompressed when they are read."""

    def __init__(self, examples: int = 256, size: int = 160):
        image = bytes(range(256)) * (3 * size * size // 256)
        self.shape, self.images = (3, size, size), [zlib.compress(image[k:] + image[:k], 1) for k in range(examples)]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        return (
            torch.frombuffer(bytearray(zlib.decompress(self.images[index])), dtype=torch.uint8).view(self.shape) / 255
        )


def bench_loader(members: int = 5, repeats: int = 5) -> str:
    model = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(1200, 10)).eval()
    store = Snapshots()
    for step in range(1, members + 1):
        store.commit(step, {name: torch.randn_like(tensor) for name, tensor in tensors(model).items()})
    ensemble, loader = Ensemble(store, model), DataLoader(Compressed(), 32)

    def once():
        with torch.no_grad():
            for batch in loader:
                for member in ensemble.members:
                    member(batch)

    pairs = [(seconds(once), seconds(lambda: ensemble.predict(loader))) for _ in range(repeats)]
    plain, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    return f"predict() of {members} members: {ours / plain:.2f} × one pass over the loader and their forward passes"


def peak(action) -> int:
    """The peak memory of the process during the action, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    action()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    print(
        f"torch {torch.__version__}, {platform.platform()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )
    print(bench_step())
    print(bench_loader())
    with tempfile.TemporaryDirectory(dir=".") as temporary:
        print(bench_commit(Path(temporary)))
        print(bench_growth(Path(temporary)))
        print(bench_streaming(Path(temporary)))
