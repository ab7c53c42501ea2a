"""Integrations with training frameworks; each holds a `SnapshotEnsembler`."""
