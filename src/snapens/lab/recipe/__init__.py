"""Recipes: everything that defines a run, and the values that a recipe is composed of."""

from .averaging import EMA
from .methods import Grow, Single, SingleCycle, Snapshot
from .mixing import CutMix, Mixup
from .objectives import CrossEntropy, Distillation, Teacher
from .optimizers import SGD, AdamW
from .recipe import Budget, Dataset, Network, Recipe
from .settings import Settings
from .sharpness import SAM
from .transforms import ColourJitter, Cutout, Lighting, Mirror
from .trivialaugment import TrivialAugment

__all__ = [
    "EMA",
    "SAM",
    "SGD",
    "AdamW",
    "Budget",
    "ColourJitter",
    "CrossEntropy",
    "CutMix",
    "Cutout",
    "Dataset",
    "Distillation",
    "Grow",
    "Lighting",
    "Mirror",
    "Mixup",
    "Network",
    "Recipe",
    "Settings",
    "Single",
    "SingleCycle",
    "Snapshot",
    "Teacher",
    "TrivialAugment",
]
