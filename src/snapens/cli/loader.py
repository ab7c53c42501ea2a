"""Loader: reads the data sets of a command; and functions that locate these and the user's own networks."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..lab import nets
from ..lab.recipe.recipe import Recipe
from .messages import say

if TYPE_CHECKING:
    from ..lab.data.protocol import Data
    from ..lab.records.run import Run
    from .options import TrainingOptions

# data set -> the folder in --data that is read if it exists, else --data itself
_IMAGE_FOLDERS = {"folder": ".", "imagenet": "imagenet", "tinyimagenet": "tiny-imagenet-200"}

Check = Callable[[str, "Data"], object]
Jobs = Sequence[tuple[Recipe, Path]]
"""Recipes, and the folders of their runs."""


class Loader:
    """Reads data sets, each once; with `keep`, they stay in memory for further packs.

    `check` rejects a data set by its name and content.
    """

    def __init__(self, options: "TrainingOptions", *, keep: bool = False, check: "Check | None" = None) -> None:
        self._options, self._keep, self._check_data = options, keep, check
        self._unused: dict[str, Data] = {}

    def __call__(self, recipe: Recipe) -> "Data":
        """The data set of a recipe."""
        name = recipe.dataset.name
        data = self._unused.pop(name) if name in self._unused else self._read(name)
        if self._keep:
            self._unused[name] = data
        return data

    def read(self, recipes: Iterable[Recipe]) -> None:
        """Read the data sets now; later calls return them."""
        for name in {recipe.dataset.name for recipe in recipes} - self._unused.keys():
            self._unused[name] = self._read(name)

    def with_held_out(self, recipe: Recipe, out: Path | None) -> Recipe:
        """The recipe with a tenth of a user's own training examples held out, or as many as in the run to resume."""
        from ..combine.held_out import FEW_EXAMPLES
        from ..lab.data import DATASETS
        from ..lab.data.labels import tenth
        from ..lab.records.run import Run

        name, seed = recipe.dataset.name, recipe.dataset.held_out_seed
        if name not in DATASETS or not DATASETS[name].holds_out:
            return recipe
        if out is not None and self._options.resume and Run(out).exists:
            return _holding_out(Run(out).recipe.dataset.held_out, recipe)
        self._check(recipe, out)
        data = self._unused[name] = self(recipe)
        count, examples = tenth(data.train.labels, seed), len(data.train)
        purpose = "so that a combination can be chosen on them"
        if (count if data.held_out is None else len(data.held_out)) < FEW_EXAMPLES:
            purpose = f"too few for a temperature and early exit, which need {FEW_EXAMPLES}"
        if data.held_out is not None:
            say(f"holding out the {len(data.held_out):,} examples in val/, {purpose}")
            return recipe
        if count:
            say(f"holding out {count:,} of {examples:,} training examples, {purpose}; --held-out 0 trains on all")
        else:
            say(f"holding out no examples, because the {examples:,} training examples are too few")
        return _holding_out(count, recipe)

    def _check(self, recipe: Recipe, out: Path | None) -> None:
        """Check what can be checked before the data are read, which may take minutes."""
        from ..lab.engine.device import chosen_device
        from ..lab.records.run import Run

        chosen_device(self._options.device)
        import_from_here([recipe.network.name])
        nets.require(**vars(recipe.network))
        if out is not None:
            require_outside_images([(recipe, out)], data_root(self._options.data))
            Run(out).admit(recipe, self._options.resume)

    def _read(self, name: str) -> "Data":
        from ..lab import data
        from .progress import Download

        say(f"reading {name}")
        with Download(name) as progress:
            root = data_root(self._options.data)
            found = data.load(name, root, download=self._options.download, progress=progress)
        if self._check_data is not None:
            self._check_data(name, found)
        return found


def data_root(given: Path | None) -> Path | None:
    """The folder with the data: the one given, else that of the environment variable SNAPENS_DATA."""
    named = os.environ.get("SNAPENS_DATA")
    return given or (Path(named) if named else None)


def import_from_here(networks: Iterable[str]) -> None:
    """Allow the user's own network (module:callable) to be imported from the current folder.

    The folder comes last in `sys.path`, so a file in it cannot replace an installed package.
    """
    if any(map(nets.is_own, networks)) and (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def import_network_of(run: "Run", allowed: bool) -> None:
    """Allow the network that a run folder names as module:callable to be imported, if the user agrees."""
    run.require_trust(allowed)
    import_from_here([run.recipe.network.name])


def require_outside_images(jobs: Jobs, root: Path | None) -> None:
    """Reject run folders in a folder of images: their sub-folders would be read as classes."""
    for recipe, path in jobs:
        if root is not None and recipe.dataset.name in _IMAGE_FOLDERS:
            place = root.expanduser().resolve()
            inner = place / _IMAGE_FOLDERS[recipe.dataset.name]
            images = inner if inner.is_dir() else place
            if path.resolve().is_relative_to(images):
                raise ArgumentError(f"out must be outside the folder of images, got {path} in {images}: choose another")


def _holding_out(count: int, recipe: Recipe) -> Recipe:
    return replace(recipe, dataset=replace(recipe.dataset, held_out=count))
