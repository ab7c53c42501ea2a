"""Hugging Face: a callback for the Trainer, ensembles in the folder layout of the Hub, and text generation."""

from .callback import SnapshotCallback as SnapshotCallback
from .hub import load_ensemble as load_ensemble
from .hub import save_ensemble as save_ensemble
from .model import EnsembleModel as EnsembleModel
