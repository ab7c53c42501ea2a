"""Options that several commands have."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

Place = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]


@dataclass(frozen=True)
class Where:
    """Where the data lies and where to train."""

    data: Place = None
    """The folder that holds the data sets, or your own data; else the variable SNAPENS_DATA."""
    download: bool = False
    """Fetch the data set if it is not there and has a public address."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one."""
    threads: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """How many a CPU uses; torch's own choice by default."""
    resume: bool = False
    """Go on with the runs that are in their folders."""
    tensorboard: bool = False
    """Write TensorBoard's event files into the run folders as well."""
