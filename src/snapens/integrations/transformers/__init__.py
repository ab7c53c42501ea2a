"""Hugging Face: a callback of the Trainer, ensembles in folders of the Hub's layout, and text generation."""

from .callback import SnapshotCallback as SnapshotCallback
