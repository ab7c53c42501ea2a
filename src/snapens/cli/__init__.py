"""The command line: the only place that prints or reads arguments."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import tyro
from tyro.conf import subcommand

from .. import __version__
from ..errors import ArgumentError, ProcessError, SnapensError
from ..lab.paper.cells import run_name
from ..lab.recipe import Settings
from ..lab.recipe.value import unknown
from . import processes
from .combining import Combine
from .distillation import Distill
from .evaluation import Evaluate
from .exporting import Export
from .options import Flag, Place, Preset, Runs, TrainingOptions, arg
from .paper import Paper
from .predicting import Predict
from .preset import note_random_weights, with_flags_of_preset
from .sweep import Sweep
from .timing import Bench


@dataclass(frozen=True)
class Demo:
    """Compare a baseline with a Snapshot Ensemble on a CPU, in about 40 seconds."""

    out: Path = Path("runs/demo")
    """The folder for the two run folders. Finished runs in it are shown, not repeated."""
    seed: int = 0
    """The seed of both runs."""

    def __call__(self) -> int:
        """Train both with the same budget; print the errors of the snapshots, the ensembles and the baseline."""
        from ..lab.recipe.presets import demo
        from ..lab.records.run import Run
        from . import tables
        from .training import train, with_report

        single, snapshot = (self.out / f"{name}-seed{self.seed}" for name in ("single", "snapshot"))
        jobs = list(zip(demo(self.seed), (single, snapshot), strict=True))
        # one thread: with a network this small, two threads would mostly wait for each other
        status = train(jobs, TrainingOptions(device="cpu", threads=1, resume=True), again="the same command")
        processes.end_others(status)
        if status == 0:
            with_report([snapshot, single], lambda: tables.demo(Run(single), Run(snapshot)))
        return status


@dataclass(frozen=True)
class Flags(Settings):
    """A network, a data set, a method and a budget."""

    # the help texts describe the defaults of these
    lr: Annotated[float | None, arg("FLOAT")] = None
    weight_decay: Annotated[float | None, arg("FLOAT")] = None
    momentum: Annotated[float | None, arg("FLOAT")] = None
    padding: Annotated[int | None, arg("INT")] = None
    transforms: Annotated[tuple[str, ...] | None, arg("[NAME ...]")] = None
    ema: Annotated[float | None, arg("FLOAT")] = None
    sam: Annotated[float | None, arg("FLOAT")] = None
    held_out: Annotated[int | None, arg("INT")] = None
    pretrained: Flag = False


@dataclass(frozen=True)
class Train:
    """Train a network and store its snapshots."""

    settings: Flags
    training: TrainingOptions
    preset: Preset = None
    """Settings to start from, which other flags override: cifar10-modern, cifar100-modern, or folder-modern."""
    out: Place = None
    """The run folder. By default a folder in runs/ that is named after the recipe."""
    curves: Flag = False
    """At the end, measure the errors between the last snapshot and each earlier one (the paper's Figure 5)."""
    local_batchnorm: Flag = False
    """Each process computes the BatchNorm statistics of its own examples; the recipe then names their number."""

    def __call__(self) -> int:
        """Train, then print the errors of the snapshots and of their ensembles."""
        from ..lab.records.run import Run
        from . import tables
        from .loader import Loader
        from .training import train, with_report

        recipe, load = self.settings.recipe(), Loader(self.training)
        note_random_weights(self.preset, [recipe.network.name])
        world = processes.world()
        if self.local_batchnorm:
            recipe = replace(recipe, batchnorm_parts=world.count)
        if self.settings.held_out is None:
            found = world.agree(lambda: load.with_held_out(recipe, self.out))
            recipe = world.first(lambda: found)  # only the first process needs the folder of a run to resume
        out = self.out or Path("runs") / run_name(recipe)
        status = train([(recipe, out)], self.training, load, curves=self.curves)
        processes.end_others(status)
        if status == 0:
            with_report([out], lambda: tables.run(Run(out)))
        return status


@dataclass(frozen=True)
class Report:
    """Write an HTML page about one run, or about several runs to compare."""

    runs: Runs
    """Run folders, or folders that contain run folders."""
    focus: Annotated[str | None, arg("NAME")] = None
    """The name of the run folder that the report is about. By default a Snapshot Ensemble with a matching baseline."""
    out: Place = None
    """The page (.html), or a folder for the page or its parts. By default the folder of the run that it is about,
    or the first argument if it is a folder of several runs."""
    format: Literal["html", "png", "svg", "csv", "json"] = "html"
    """html: the page. Otherwise its parts: charts as png or svg, tables as csv or json."""

    def __call__(self) -> int:
        """Write the page, or its parts, and print the paths."""
        from ..lab.records.runs import runs_in
        from ..report.page import write
        from ..report.pieces import Format, pieces
        from ..report.summary import in_focus, with_data_of_focus

        if not self.runs:
            raise ArgumentError("runs must name at least one run folder, got none")
        first, *others = map(runs_in, self.runs)
        runs = [run for found in (first, *others) for run in found]
        if len(runs) > len(self.runs):
            runs = with_data_of_focus(runs, self.focus)
        place = self.runs[0]
        if first[0].path == place:  # a run: its folder must not get a page about another run
            place = in_focus(runs, self.focus).path
        if self.format == "html":
            out = self.out or place
            if out.suffix[1:] in get_args(Format):
                raise ArgumentError(
                    f"out must be a page or a folder, got {out}: add --format {out.suffix[1:]} for its parts"
                )
            is_page = out.suffix in (".html", ".htm") and not out.is_dir()
            written = [write(runs, out if is_page else out / "report.html", self.focus)]
        else:
            if self.out is not None and self.out.suffix[1:] == self.format:
                raise ArgumentError(f"out must be a folder, because there are several files, got {self.out}")
            written = pieces(runs, self.out or place / "report", self.format, self.focus)
        sys.stdout.write("".join(f"{path}\n" for path in written))
        return 0


@dataclass(frozen=True)
class Snapens:
    """Train one network, get an ensemble for free: Snapshot Ensembles for PyTorch."""

    command: (
        Annotated[Demo, subcommand("demo")]
        | Annotated[Train, subcommand("train")]
        | Annotated[Sweep, subcommand("sweep")]
        | Annotated[Predict, subcommand("predict")]
        | Annotated[Evaluate, subcommand("evaluate")]
        | Annotated[Combine, subcommand("combine")]
        | Annotated[Distill, subcommand("distill")]
        | Annotated[Report, subcommand("report")]
        | Annotated[Export, subcommand("export")]
        | Annotated[Paper, subcommand("paper")]
        | Annotated[Bench, subcommand("bench")]
    )
    version: Flag = False
    """Print the version and exit."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    It is 0, or 1 if a run failed, 2 if the command was rejected, 128 and the number of a signal that ended it.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a character that the encoding lacks is no failure
    try:
        return _status(arguments) if processes.is_first() else _silent(arguments)
    except ProcessError as error:  # only the process itself knows it
        sys.stderr.write(f"snapens: {error}\n")
        return 1


def _silent(arguments: Sequence[str]) -> int:
    """Run one command without printing. The first process reports an error; torchrun must not end it before that."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere), suppress(SystemExit):
        _status(arguments)
    return 0


def _status(arguments: Sequence[str]) -> int:
    if "--version" in arguments[:1]:
        sys.stdout.write(f"snapens {__version__}\n")
        return 0
    try:
        status: int = _command(arguments)()
        sys.stdout.flush()
        return status
    except ProcessError:
        raise
    except SnapensError as error:
        sys.stderr.write(f"snapens: {error}\n")
        return 2
    except KeyboardInterrupt as error:
        sys.stderr.write("snapens: interrupted\n")
        return 128 + (error.args[0] if error.args else signal.SIGINT)
    except BrokenPipeError:  # the reader has ended, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that flushing at exit does not fail either
        return 141


def _command(arguments: Sequence[str]) -> Any:
    """The command with its arguments. tyro reads only those of this command, and suggests only its options."""
    names, kind = _named(arguments)
    return tyro.cli(  # for a group of commands, it prints the help or an error, and exits
        kind,
        prog=" ".join(["snapens", *names]),
        args=with_flags_of_preset(arguments)[len(names) :],
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
    )


def _named(arguments: Sequence[str]) -> tuple[list[str], Any]:
    """The words that name a command, and its class. A mistyped command is rejected with the nearest one."""
    names: list[str] = []
    kind: type = Snapens
    for word in arguments:
        commands = _commands(kind)
        if not commands or word.startswith("-"):
            break
        if word not in commands:
            raise unknown("command", word, commands)
        names, kind = [*names, word], commands[word]
    return names, kind


def _commands(group: type) -> dict[str, type]:
    """The commands of a group, by name; none for a command that is not a group."""
    options = (get_args(option) for option in get_args(get_type_hints(group, include_extras=True).get("command")))
    return {annotation.name: command for command, annotation in options}
