"""Options of several commands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

# the hint is what tyro adds in parentheses: "(default: None)" would say nothing
Place = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True)
class TrainingOptions:
    """The data, the device and the state to start from."""

    data: Place = None
    """The folder with the data sets, or your own data. By default the environment variable SNAPENS_DATA."""
    download: Flag = False
    """Download the data set if it is missing and has a public URL."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one, else the CPU."""
    threads: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """The number of CPU threads. The default is torch's."""
    resume: Flag = False
    """Continue runs that were interrupted."""
    tensorboard: Flag = False
    """Also write TensorBoard event files into the run folders."""
