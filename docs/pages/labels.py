"""Labels of runs: how a recipe uses its epochs, and its differences from a standard recipe, in words."""

from typing import Any, Literal

from snapens.lab.paper import cells as paper
from snapens.lab.recipe.presets import PRESETS
from snapens.lab.recipe.recipe import Dataset, Network, Recipe
from snapens.lab.recipe.value import Value
from snapens.report import names

_OF_THE_WAY = {"method.cycles", "method.first_cycle", "method.later_peak"}
_OF_OTHER_COLUMNS = {"seed", "budget.epochs", "dataset.held_out"}
_OF_OTHER_WORDS = ("transforms", "averaging", "sharpness")
_TRANSFORMS = {
    "cutmix": "CutMix",
    "cutout": "cutout",
    "jitter": "colour jitter",
    "lighting": "lighting",
    "mirror": "mirroring",
    "mixup": "Mixup",
    "trivialaugment": "TrivialAugment",
}
_PHRASES = {
    "budget.batch": "batches of {}",
    "budget.warmup_epochs": "{} epochs of warm-up",
    "objective.label_smoothing": "label smoothing {}",
    "optimizer.lr": "peak rate {}",
    "optimizer.weight_decay": "weight decay {}",
}


def way(recipe: Recipe) -> Literal["cosine", "cycles", "fge"]:
    """How a recipe uses its epochs."""
    method = recipe.method
    return "cosine" if method.cycles == 1 else "fge" if method.later_peak < 1 else "cycles"


def words(recipe: Recipe) -> str:
    """The label of a recipe: its way, the average of its weights, and its changes.

    Examples:
        >>> from snapens.lab.recipe.presets import cifar100_modern
        >>> from dataclasses import replace
        >>> words(replace(cifar100_modern(), cycles=1, ema=0.999, label_smoothing=0.1).recipe())
        'one cosine, EMA of the weights, label smoothing 0.1'
    """
    parts = [_way_in_words(recipe)]
    if recipe.averaging is not None:
        average = _with_settings("EMA", recipe.averaging)
        parts.append(f"{average} of the weights" if way(recipe) == "cosine" else f"each snapshot an {average}")
    return ", ".join([*parts, *changes(recipe)])


def changes(recipe: Recipe) -> tuple[str, ...]:
    """The differences from the standard recipe, except for the way, the budget, the seed and the average."""
    return _changes(recipe, standard(recipe))


def standard(recipe: Recipe) -> Recipe:
    """The recipe that another one is compared with.

    It is the one with the fewest differences among the presets for the data set and the paper's recipes for the
    network, the data set and the method.
    """
    presets = [found.recipe() for preset in PRESETS.values() if (found := preset()).dataset == recipe.dataset.name]
    published = [cell.recipe for cell in paper.cells() if _subject(cell.recipe) == _subject(recipe)]
    default = Recipe(Network(recipe.network.name), Dataset(recipe.dataset.name))
    return min([*presets, *published] or [default], key=lambda other: len(_changes(recipe, other)))


def _changes(recipe: Recipe, other: Recipe) -> tuple[str, ...]:
    theirs = other.flat()
    settings = [
        _setting(name, value)
        for name, value in recipe.flat().items()
        if name not in _OF_THE_WAY | _OF_OTHER_COLUMNS
        and not name.startswith(_OF_OTHER_WORDS)
        and (name not in theirs or value != theirs[name])
    ]
    sharpness = [] if recipe.sharpness is None else [_with_settings("SAM", recipe.sharpness)]
    return (*_transforms(recipe, other), *sharpness, *settings)


def _setting(name: str, value: Any) -> str:
    if name == "network.name":
        return names.NETWORKS.get(str(value), str(value))
    words = name.replace(".", " ").replace("_", " ")
    return _PHRASES.get(name, f"{words}: {{}}").format(_text(value))


def _subject(recipe: Recipe) -> tuple[str, str, str | None]:
    return recipe.network.name, recipe.dataset.name, recipe.method.kind


def _way_in_words(recipe: Recipe) -> str:
    method, budget = recipe.method, recipe.budget
    if way(recipe) == "cosine":
        return "one cosine"
    if way(recipe) == "cycles":
        longer = f", the first {method.first_cycle:g} times as long" if method.first_cycle > 1 else ""
        return f"Snapshot Ensemble, {method.cycles} cycles{longer}"
    short = (budget.epochs - budget.warmup_epochs) / (method.first_cycle + method.cycles - 1)
    later = f"{method.cycles - 1} cycles of {short:.0f} epochs with {method.later_peak:g} times the peak rate"
    return f"FGE: one cosine, then {later}"


def _transforms(recipe: Recipe, other: Recipe) -> list[str]:
    """How the transforms differ from those of another recipe."""
    if recipe.transforms == other.transforms:
        return []
    if recipe.transforms is None:
        return ["default transforms"]
    ours, theirs = recipe.transforms, other.transforms or ()
    added = _listed([one for one in ours if one not in theirs])
    removed = _listed([one for one in theirs if one not in ours])
    return [f"{added} instead of {removed}" if added and removed else f"transforms: {_listed(ours)}"]


def _listed(transforms: Any) -> str:
    return " and ".join(_with_settings(_TRANSFORMS[one.kind], one) for one in transforms)


def _with_settings(name: str, value: Value) -> str:
    """A name, followed by the settings that are not the default: `CutMix (probability 0.5)`."""
    chosen = [f"{key.replace('_', ' ')} {_text(found)}" for key, found in value.written().items() if key != "kind"]
    return f"{name} ({', '.join(chosen)})" if chosen else name


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
