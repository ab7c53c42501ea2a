"""Snapshot Ensembles in training frameworks; each integration holds a `SnapshotEnsembler`."""
