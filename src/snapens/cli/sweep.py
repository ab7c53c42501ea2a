"""`snapens sweep`: train one run for every combination of settings."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import tyro

from ..errors import ArgumentError
from ..lab.paper.cells import run_name
from ..lab.recipe import Recipe, Settings
from ..lab.recipe.variations import variations
from . import processes
from .messages import counted
from .options import Flag, PlanOptions, Preset, TrainingOptions, arg
from .preset import note_random_weights, values_of_preset

if TYPE_CHECKING:  # --help does not wait for torch
    from ..lab.recipe.recipe import Dataset
    from .loader import Jobs, Loader

_LISTS = {  # settings that are lists themselves: one value is a comma-separated list
    "transforms": "Transforms of training images after cropping. A value is a comma-separated list, such as "
    "mirror,cutout=16. The default depends on the data set.",
    "pattern": "For grow: the start of each cycle after the first. A value is a comma-separated list, such as "
    "warm,warm,fresh; it is repeated as needed.",
}


class _Absent(tuple[Any, ...]):
    """The value of a setting that the command does not name; a setting without a value is another empty tuple."""


_ABSENT = _Absent()


def _option(name: str, hint: Any, default: Any) -> tuple[str, Any, Any]:
    """A setting as a field that takes several values; without a value, it has the default of the setting."""
    if name in _LISTS:
        hint, shown = str, tyro.conf.arg(metavar="[LIST ...]", help=_LISTS[name], help_behavior_hint="")
    else:
        hint = get_args(hint)[0] if type(None) in get_args(hint) else hint
        shown = arg(hint="" if default is None or default is False else f"(default: {default})")
    return name, Annotated[tuple[hint, ...], shown], field(default=_ABSENT)


_HINTS = get_type_hints(Settings)
# a subclass of Settings, because the help texts are those of its fields
Several: Any = make_dataclass(
    "Several",
    [_option(one.name, _HINTS[one.name], one.default) for one in fields(Settings)],
    bases=(Settings,),
    frozen=True,
)
Several.__doc__ = "Each setting takes one or more values; one run is trained for every combination."


@dataclass(frozen=True)
class Sweep:
    """Train one run for every combination of settings, such as seeds and rates."""

    settings: Several
    training: TrainingOptions
    plan: PlanOptions
    preset: Preset = None
    """Settings to start from, which other flags override: cifar10-modern, cifar100-modern, or folder-modern."""
    out: Path = Path("runs/sweep")
    """The folder for the run folders, which are named after their recipes. Finished runs are not trained again."""
    dry_run: Flag = False
    """List the runs without training them."""

    def __call__(self) -> int:
        """Train the runs, then print their errors and the next commands."""
        from . import tables
        from .loader import Loader
        from .plan import states, train_plan

        values = {name: given for name, given in vars(self.settings).items() if given is not _ABSENT}
        for name in (name for name, given in values.items() if not given):
            flag = f"--{name.replace('_', '-')}"
            raise ArgumentError(f"{flag} must have at least one value, got none: add one, or remove {flag}")
        for name in _LISTS.keys() & values.keys():
            values[name] = [tuple(word for word in text.split(",") if word) for text in values[name]]
        if self.preset is not None:
            common = values_of_preset(self.preset, values)
            values = {**{name: [value] for name, value in common.items()}, **values}
            note_random_weights(self.preset, values.get("network", ()))
        chosen, load = variations(values), Loader(self.training, keep=True)
        recipes = list(chosen)
        if "held_out" not in values:
            recipes = processes.world().agree(lambda: _with_held_out(recipes, load))
        jobs = [(recipe, self.out / run_name(recipe)) for recipe in recipes]
        if self.dry_run:
            self._list(jobs)
            return 0
        status = train_plan(jobs, self.training, self.plan, load)
        processes.end_others(status)
        if finished := states(jobs)["finished"]:
            varied = [name for name, given in values.items() if name != "seed" and len(set(given)) > 1]
            labels = [_label(varied, settings) for settings in chosen.values()]
            tables.sweep(_groups(zip(labels, (path for _, path in jobs), strict=True), finished))
            if len(finished) < len(jobs):
                sys.stdout.write(f"{len(finished)} of {len(jobs)} runs are finished\n")
            sys.stdout.write(f"next: snapens report {self.out}\n")
        return status

    def _list(self, jobs: "Jobs") -> None:
        """Print the runs by state, and the number of runs left to train."""
        from .plan import check, packs_here, states

        check(jobs, self.training)
        found = states(jobs)
        for state, paths in found.items():
            sys.stdout.write("".join(f"{state:12} {path}\n" for path in paths))
        left = [job for job in jobs if job[1] not in found["finished"]]
        packs = ""
        if self.plan.ray is None:
            packs = f" in {counted(packs_here(left, self.training, self.plan), 'pack')}"
        sys.stdout.write(f"{counted(jobs, 'run')}, {len(left)} left to train{packs}\n")


def _with_held_out(recipes: Sequence[Recipe], load: "Loader") -> list[Recipe]:
    """The recipes with a tenth of a user's own training examples held out, as `snapens train` does."""
    found: dict[Dataset, Dataset] = {}
    for recipe in recipes:
        if recipe.dataset not in found:
            found[recipe.dataset] = load.with_held_out(recipe, None).dataset
    return [replace(recipe, dataset=found[recipe.dataset]) for recipe in recipes]


def _groups(paths: Iterable[tuple[str, Path]], finished: Sequence[Path]) -> dict[str, list[Any]]:
    """The finished runs by their labels."""
    from ..lab.records.run import Run

    found: dict[str, list[Run]] = {}
    for label, path in paths:
        if path in finished:
            found.setdefault(label, []).append(Run(path))
    return found


def _label(varied: Sequence[str], settings: Mapping[str, Any]) -> str:
    """The settings of a run that differ within the sweep, other than the seed, as on the command line.

    Examples:
        >>> _label(["sam_every", "transforms"], {"sam": 0.1, "sam_every": 2, "transforms": ("mirror", "cutout=16")})
        'sam-every 2, transforms mirror,cutout=16'
    """
    words = [f"{name.replace('_', '-')} {_word(settings[name])}" for name in varied if name in settings]
    return ", ".join(words) or "all runs"


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value) or '""'
    return f"{value:g}" if isinstance(value, float) else str(value)
