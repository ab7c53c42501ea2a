"""Train one network, get an ensemble for free: Snapshot Ensembles for any PyTorch loop."""

from importlib import import_module

TYPE_CHECKING = False  # not imported: `python -m snapens` would take typing.py from the current folder
if TYPE_CHECKING:
    from typing import Any

    from .combination import Combination as Combination
    from .ensemble import Ensemble as Ensemble
    from .ensembler import SnapshotEnsembler as SnapshotEnsembler
    from .errors import SnapensError as SnapensError
    from .outputs import Outputs as Outputs
    from .restarts import fresh_weights as fresh_weights
    from .restarts import noisy_weights as noisy_weights
    from .restarts import reset_momentum as reset_momentum
    from .schedule import CyclicCosine as CyclicCosine
    from .schedule import Schedule as Schedule
    from .schedule import StepDecay as StepDecay
    from .snapshots import Snapshots as Snapshots

__version__ = "0.2.0"

_HOMES = {
    "Combination": "combination",
    "CyclicCosine": "schedule",
    "Ensemble": "ensemble",
    "Outputs": "outputs",
    "Schedule": "schedule",
    "SnapensError": "errors",
    "SnapshotEnsembler": "ensembler",
    "Snapshots": "snapshots",
    "StepDecay": "schedule",
    "fresh_weights": "restarts",
    "noisy_weights": "restarts",
    "reset_momentum": "restarts",
}


__all__ = list(_HOMES)


def __getattr__(name: str) -> "Any":
    # loaded on first use, so that a schedule, or --help, does not wait for torch
    if name in ("combine", "errors", "metrics", "uncertainty"):
        return import_module(f".{name}", __name__)
    if name not in _HOMES:
        raise AttributeError(f"module 'snapens' has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
