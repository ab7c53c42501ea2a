"""`snapens bench`: measure training and prediction."""

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, subcommand

from ..errors import ArgumentError
from ..lab.recipe import Settings
from ..lab.recipe.value import require_at_least
from ..storage import durable, jsonfile
from .combining import in_words
from .interrupt import Interrupt
from .loader import data_root, import_from_here, import_network_of
from .options import Flag, ImportNetwork, Place, arg

Networks = Annotated[tuple[str, ...], Positional, arg("[NETWORK ...]", "(default: resnet110 wrn32 densenet40)")]
_NETWORKS = ("resnet110", "wrn32", "densenet40")
_MEMBERS = 5


@dataclass(frozen=True)
class BenchTrain:
    """Measure the training speed of the engine and of plain PyTorch loops."""

    networks: Networks = _NETWORKS
    """Names of networks."""
    dataset: str = "cifar100"
    """The data set to train on."""
    batch: int = 64
    """Images per step."""
    pack: int = 8
    """The number of runs that share the device."""
    engine_only: Flag = False
    """Measure only the engine; for a DenseNet on a GPU, with and without fused blocks."""
    seconds: float = 60.0
    """The duration of each measurement, after a warm-up."""
    data: Place = None
    """The folder with the data set. By default the environment variable SNAPENS_DATA."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one, else the CPU."""
    out: Place = None
    """Also write the numbers to this JSON file."""

    def __call__(self) -> int:
        """Print images per second, and the ratio to the plain loop, after each measurement."""
        require_at_least(1, batch=self.batch, pack=self.pack)
        require_at_least(0, seconds=self.seconds)
        import torch

        from ..lab.engine.bench import compare
        from ..lab.engine.device import chosen_device, device_name

        device, root = chosen_device(self.device), data_root(self.data)
        import_from_here(self.networks)
        about = {"device": device_name(device), "torch": torch.__version__, "batch": self.batch}
        found: dict[str, dict[str, float | None]] = {}
        setting = f"batch {self.batch}, {self.dataset}; training images/s"
        _put(f"{about['device']}, torch {torch.__version__}, {setting}")
        common = Settings(dataset=self.dataset, batch=self.batch, epochs=200, cycles=1)
        recipes = [replace(common, network=network).recipe() for network in self.networks]
        with Interrupt():
            for recipe in recipes:
                name = recipe.network.name
                speeds = found.setdefault(name, {})
                measured = compare(recipe, root, device.type, self.pack, self.seconds, loops=not self.engine_only)
                for what, speed in measured:
                    speeds[what] = speed
                    plain = next(iter(speeds.values()))
                    shown = "–" if speed is None or plain is None else f"{speed:10,.0f} {speed / plain:6.1f} ×"
                    _put(f"{name:12} {what:44} {shown}")
                    _write(self.out, {**about, "images_per_second": found})
        return 0


@dataclass(frozen=True)
class BenchPredict:
    """Measure the time of a prediction: one model, an Ensemble, and a Predictor."""

    networks: Networks = _NETWORKS
    """Names of networks, with random weights. With --run, the network of the run is used."""
    run: Place = None
    """A run folder with the snapshots to use."""
    data: Place = None
    """The folder with the data set of the run, for its test examples. By default inputs are random."""
    threshold: Annotated[float | None, arg("FLOAT")] = None
    """The threshold of early exit. By default that of the run's combination.json."""
    members: int = _MEMBERS
    """The number of members; only without --run."""
    batches: tuple[int, ...] = (1, 32, 256, 1024)
    """The batch sizes to measure."""
    seconds: float = 1.0
    """The duration of each measurement, after a warm-up."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one, else the CPU."""
    out: Place = None
    """Also write the numbers to this JSON file."""
    import_network: ImportNetwork = False

    def __call__(self) -> int:
        """Print milliseconds per batch, and the ratio to one model, after each measurement."""
        if self.run is None and (self.threshold is not None or self.data is not None):
            raise ArgumentError("threshold and data need the snapshots of a run: add --run FOLDER")
        if self.run is not None and (self.networks != _NETWORKS or self.members != _MEMBERS):
            raise ArgumentError(
                f"networks and members must not be given together with a run, which has its own, got {self.run}: "
                "remove them, or --run"
            )
        if self.threshold is not None and self.data is None:
            raise ArgumentError(
                f"threshold must be given together with data, because random inputs do not exit early, got "
                f"{self.threshold}: add --data DIR"
            )
        require_at_least(1, members=self.members, batches=min(self.batches, default=0))
        require_at_least(0, seconds=self.seconds)
        self._measure()
        return 0

    def _measure(self) -> None:
        """Print a line per measurement, and write the numbers so far to `out`."""
        import torch

        from ..lab.engine import speed
        from ..lab.engine.device import chosen_device, device_name
        from ..lab.records.run import Run

        device, run = chosen_device(self.device), None if self.run is None else Run(self.run)
        if run is None:
            import_from_here(self.networks)
        else:
            import_network_of(run, self.import_network)
        _put(f"{device_name(device)}, torch {torch.__version__}; milliseconds per batch, ratio to one model")
        found: dict[str, Any] = {"device": device_name(device), "torch": torch.__version__, "networks": {}}
        one = 0.0
        with Interrupt():
            for name in self.networks if run is None else (run.path.resolve().name,):
                if run is None:
                    subject = speed.of_network(name, self.members, self.batches, device)
                else:
                    subject = speed.of_run(run.path, self.data, self.threshold, self.batches, device)
                threshold = subject.ensemble.combination.exit_threshold
                numbers: dict[str, Any] = {"exit_threshold": threshold, "qualities": {}, "timings": []}
                found["networks"][name] = numbers
                if run is not None:
                    _put(in_words(subject.ensemble.combination, len(run.snapshots.steps)))
                for what, quality in subject.qualities():
                    numbers["qualities"][what] = asdict(quality)
                    _put(f"{name}, {what}: {quality}")
                for batch in self.batches:
                    for timing in subject.timings(batch, self.seconds):
                        one = timing.median_ms if timing.what == speed.ONE else one
                        ratio = timing.median_ms / one
                        numbers["timings"].append({**asdict(timing), "ratio": ratio})
                        _put(f"{name:12} {batch:5}  {timing.what:28} {timing.median_ms:10.3f} {ratio:7.2f} ×")
                    _write(self.out, found)


@dataclass(frozen=True)
class Bench:
    """Measure the speed of training, or the time of a prediction."""

    command: Annotated[BenchTrain, subcommand("train")] | Annotated[BenchPredict, subcommand("predict")]


def _put(line: str) -> None:
    """Print a line at once, because the next measurement may take a minute."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _write(out: Path | None, content: dict[str, Any]) -> None:
    if out is not None:
        durable.write(out, jsonfile.dumps(content))
