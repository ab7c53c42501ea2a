"""Options of several commands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro


def arg(metavar: str | None = None, hint: str = "") -> Any:
    """How an option is shown; the hint replaces what tyro adds in parentheses, such as "(default: None)"."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint)


Place = Annotated[Path | None, arg("PATH")]
Flag = Annotated[bool, arg()]
ImportNetwork = Annotated[
    bool,
    tyro.conf.arg(
        help="Import the network of a run that was trained with module:callable; this executes its code.",
        help_behavior_hint="",
    ),
]
Preset = Annotated[str | None, arg("NAME")]
Folder = Annotated[Path, tyro.conf.Positional, arg("RUN", "(required)")]
Runs = Annotated[tuple[Path, ...], tyro.conf.Positional, arg("RUN [RUN ...]", "(required)")]


@dataclass(frozen=True)
class TrainingOptions:
    """The data, the device and the state to start from."""

    data: Place = None
    """The folder with the data sets, or your own data. By default the environment variable SNAPENS_DATA."""
    download: Flag = False
    """Download the data set if it is missing and has a public URL."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one, else the CPU."""
    threads: Annotated[int | None, arg("INT")] = None
    """The number of CPU threads. The default is torch's."""
    resume: Flag = False
    """Continue runs that were interrupted."""
    tensorboard: Flag = False
    """Also write TensorBoard event files into the run folders."""


@dataclass(frozen=True)
class PlanOptions:
    """Where several runs are trained, and how many at a time."""

    pack: Annotated[int | None, arg("INT")] = None
    """The maximum number of runs that share a device. By default 8 on a GPU, and 1 on a CPU."""
    ray: Annotated[tuple[str, ...] | None, arg("[ADDRESS]")] = None
    """Train with Ray, one pack per GPU or per --threads CPU cores.
    ADDRESS is HOST:PORT of a cluster, or auto for the cluster on this machine. Without it, Ray is started here."""
