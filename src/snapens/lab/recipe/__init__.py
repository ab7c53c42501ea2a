"""Recipes: everything that defines a run, and the values that a recipe is composed of."""

from .averaging import EMA as EMA
from .methods import Grow as Grow
from .methods import Single as Single
from .methods import SingleCycle as SingleCycle
from .methods import Snapshot as Snapshot
from .mixing import CutMix as CutMix
from .mixing import Mixup as Mixup
from .objectives import CrossEntropy as CrossEntropy
from .objectives import Distillation as Distillation
from .objectives import Teacher as Teacher
from .optimizers import SGD as SGD
from .optimizers import AdamW as AdamW
from .recipe import Budget as Budget
from .recipe import Dataset as Dataset
from .recipe import Network as Network
from .recipe import Recipe as Recipe
from .settings import Settings as Settings
from .sharpness import SAM as SAM
from .transforms import ColourJitter as ColourJitter
from .transforms import Cutout as Cutout
from .transforms import Lighting as Lighting
from .transforms import Mirror as Mirror
from .trivialaugment import TrivialAugment as TrivialAugment
