"""Hugging Face: a callback of the Trainer, ensembles in folders of the Hub's layout, and text generation."""

from .callback import SnapshotCallback as SnapshotCallback
from .hub import load_ensemble as load_ensemble
from .hub import save_ensemble as save_ensemble
from .model import EnsembleModel as EnsembleModel
