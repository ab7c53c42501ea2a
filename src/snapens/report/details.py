"""Details: all that the page shows of the one run it is about."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..errors import DamagedError
from ..lab.records import gallery
from ..lab.records.curves import Between
from ..lab.records.run import Run
from ..lab.records.scores import Floats, Running
from ..outputs import Outputs
from .account import Account
from .evidence import Evidence
from .exits import THRESHOLDS, Exits

_BINS = 15  # as in metrics.ece
_CLASSES = 5  # shown that gain, and as many that lose


@dataclass(frozen=True)
class Bin:
    """Examples of like confidence: how many, how confident and how accurate on average."""

    examples: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class ClassChange:
    """A class of the test images, and the errors on it of the last snapshot and of all together."""

    name: str
    examples: int
    errors_last: int
    errors_ensemble: int

    @property
    def change(self) -> int:
        """Errors that the ensemble adds; less than 0 where it gains."""
        return self.errors_ensemble - self.errors_last


@dataclass(frozen=True)
class Vote:
    """The class that gets the most probability, that probability, and whether the class is right."""

    name: str
    probability: float
    right: bool


@dataclass(frozen=True)
class Example:
    """A disputed test image: what each member says, the last first, and what their running mean says."""

    index: int
    truth: str
    votes: tuple[Vote, ...]
    says: tuple[Vote, ...]
    """The mean of the last 1 … M."""
    asked: tuple[int, ...]
    """Members asked at each of `exits.THRESHOLDS`, where all may be."""
    pixels: NDArray[np.uint8] | None
    """(height, width, channels)."""


@dataclass(frozen=True)
class Details:
    """Diversity, calibration, early exit, disputed images, classes, and the evidence for a verdict."""

    correlation: Floats
    disagreement: Floats
    between: Between | None
    """The errors between the last snapshot and the earlier ones, if they were measured."""
    reliability_last: tuple[Bin, ...]
    reliability_ensemble: tuple[Bin, ...]
    exits: Exits
    """Of the images that the evidence is from."""
    examples: tuple[Example, ...]
    gaining: tuple[ClassChange, ...]
    losing: tuple[ClassChange, ...]
    evidence: Evidence

    @classmethod
    def of(cls, run: Run, account: Account, outputs: Outputs, running: Running) -> "Details":
        """From a run folder alone."""
        p, labels = outputs.probabilities, outputs.labels
        curves = run.curves()
        between = curves if curves and curves.lines else None
        held_out = run.outputs("held_out") if run.recipe.held_out else None
        chosen = held_out or outputs
        running_chosen = Running.of(chosen.probabilities, chosen.labels) if held_out else running
        changes = _changes(account, labels)
        return cls(
            metrics.correlation(p),
            metrics.disagreement(p),
            between,
            _reliability(running.confidence[0], ~account.wrong[0]),
            _reliability(running.confidence[-1], ~account.wrong[1]),
            Exits.of(running_chosen, chosen.labels),
            tuple(_examples(run, account.classes, outputs, running)),
            tuple(change for change in changes[:_CLASSES] if change.change < 0),
            tuple(change for change in changes[: -_CLASSES - 1 : -1] if change.change > 0),
            Evidence.of("held_out" if held_out else "test", chosen, running_chosen, account, between),
        )


def _reliability(confidence: Floats, right: NDArray[np.bool_]) -> tuple[Bin, ...]:
    """Bins of equal width, those without examples left out."""
    bin_of = np.clip(np.ceil(confidence * _BINS) - 1, 0, _BINS - 1)
    inside = [found for k in range(_BINS) if (found := bin_of == k).any()]
    return tuple(Bin(int(i.sum()), float(confidence[i].mean()), float(right[i].mean())) for i in inside)


def _changes(account: Account, labels: NDArray[np.int64]) -> list[ClassChange]:
    """One a class that has examples, the greatest gain first; ties in the order of the classes."""
    examples, last, ensemble = (
        np.bincount(labels[chosen], minlength=len(account.classes))
        for chosen in (np.ones(len(labels), bool), *account.wrong)
    )
    counts = zip(account.classes, examples.tolist(), last.tolist(), ensemble.tolist(), strict=True)
    return sorted((ClassChange(*count) for count in counts if count[1]), key=lambda found: found.change)


def _examples(run: Run, classes: tuple[str, ...], outputs: Outputs, running: Running) -> list[Example]:
    kept, labels = gallery.read(run), outputs.labels
    indices = gallery.disputed(outputs) if kept is None else kept.indices
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(labels):
        raise DamagedError(
            f"{run.path}/gallery.safetensors must show some of the {len(labels)} test images, "
            f"got number {indices.max()}: remove it"
        )
    asked = np.stack([running.asked(threshold)[indices] for threshold in THRESHOLDS])
    votes = outputs.probabilities[::-1, indices]
    found = []
    for k, index in enumerate(indices.tolist()):
        label = int(labels[index])
        said = zip(running.choice[:, index].tolist(), running.confidence[:, index].tolist(), strict=True)
        own = zip(votes[:, k].argmax(-1).tolist(), votes[:, k].max(-1).tolist(), strict=True)
        member, mean = (tuple(Vote(classes[c], p, c == label) for c, p in pairs) for pairs in (own, said))
        pixels = None if kept is None else kept.pixels[k]
        found.append(Example(index, classes[label], member, mean, tuple(asked[:, k].tolist()), pixels))
    return found
