"""Details: everything that a page shows only for the run that it is about."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from ..errors import DamagedError
from ..lab.records import gallery
from ..lab.records.curves import Between
from ..lab.records.run import Run
from ..outputs import Outputs
from ..quality import THRESHOLDS, Answers, Exits, Quality
from .account import Account
from .evidence import Evidence
from .fitted import Fitted

log = logging.getLogger("snapens")

T = TypeVar("T")

_CLASSES = 5  # classes that gain most, and as many that lose most


@dataclass(frozen=True)
class Bin:
    """Examples of similar confidence: their number, their mean confidence and their accuracy."""

    examples: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class ClassChange:
    """A class of the examples, and its errors by the last snapshot and by the ensemble."""

    name: str
    examples: int
    errors_last: int
    errors_ensemble: int

    @property
    def change(self) -> int:
        """Errors of the ensemble minus errors of the last snapshot."""
        return self.errors_ensemble - self.errors_last


@dataclass(frozen=True)
class Prediction:
    """The most probable class, its probability, and whether it is right."""

    name: str
    probability: float
    right: bool


@dataclass(frozen=True)
class Example:
    """An example on which members disagree: the prediction of each member, and of their mean."""

    index: int
    file: str | None
    """The name of the image's file; None for images without files."""
    truth: str
    members: tuple[Prediction, ...]
    """The prediction of each member, newest first."""
    means: tuple[Prediction, ...]
    """The prediction of the last 1 … M members together."""
    evaluated: tuple[int, ...]
    """The number of members that early exit evaluates at each of `THRESHOLDS`."""
    pixels: NDArray[np.uint8] | None
    """(height, width, channels)."""


@dataclass(frozen=True)
class Details:
    """Diversity, calibration, early exit, disputed examples, classes, and the evidence for the findings."""

    quality: Quality
    """The quality on the examples of the account."""
    fitted: Fitted | None
    between: Between | None
    """The errors between the last snapshot and the earlier ones, if they were measured."""
    reliability_last: tuple[Bin, ...]
    reliability_ensemble: tuple[Bin, ...]
    exits: Exits
    """Early exit on the examples that the evidence is from."""
    examples: tuple[Example, ...]
    gaining: tuple[ClassChange, ...]
    losing: tuple[ClassChange, ...]
    evidence: Evidence

    @classmethod
    def of(cls, run: Run, account: Account, outputs: Outputs) -> "Details":
        """From a run folder and its outputs for one part of the data."""
        quality = outputs.quality
        curves = _intact(run.curves)
        between = curves if curves and curves.lines else None
        held_out = run.outputs("held_out") if run.has_outputs("held_out") else None  # by the recipe or the data set
        chosen = quality if held_out is None else held_out.quality
        changes = _changes(account, quality.labels)
        fitted = Fitted.of(run, outputs, held_out)
        calibrated = fitted is not None and fitted.combination.temperature != 1
        return cls(
            quality,
            fitted,
            between,
            _reliability(quality.last, 0),
            _reliability(quality.last, -1),
            chosen.exits,
            tuple(_examples(run, account.classes, outputs)),
            tuple(change for change in changes[:_CLASSES] if change.change < 0),
            tuple(change for change in changes[: -_CLASSES - 1 : -1] if change.change > 0),
            Evidence.of("test" if held_out is None else "held_out", chosen, account, between, calibrated=calibrated),
        )


def _intact(read: Callable[[], T]) -> T | None:
    """The content of an optional file; None, with a warning, if the file is damaged."""
    try:
        return read()
    except DamagedError as error:
        log.warning("%s; the report leaves it out, and you may remove the file", error)
        return None


def _reliability(answers: Answers, predictor: int) -> tuple[Bin, ...]:
    """The bins of `metrics.ece` that have examples."""
    confidence, right = answers.confidence[predictor], ~answers.wrong[predictor]
    bin_of = metrics.confidence_bins(confidence)
    inside = [bin_of == k for k in np.unique(bin_of)]
    return tuple(Bin(int(i.sum()), float(confidence[i].mean()), float(right[i].mean())) for i in inside)


def _changes(account: Account, labels: NDArray[np.int64]) -> list[ClassChange]:
    """One per class that has examples, the greatest gain first; ties in the order of the classes."""
    examples, last, ensemble = (
        np.bincount(labels[chosen], minlength=len(account.classes))
        for chosen in (np.ones(len(labels), bool), *account.wrong)
    )
    counts = zip(account.classes, examples.tolist(), last.tolist(), ensemble.tolist(), strict=True)
    return sorted((ClassChange(*count) for count in counts if count[1]), key=lambda found: found.change)


def _examples(run: Run, classes: tuple[str, ...], outputs: Outputs) -> list[Example]:
    quality, labels = outputs.quality, outputs.labels
    choice = quality.alone.choice
    stored = _intact(lambda: gallery.read(run, len(labels)))
    indices = gallery.disputed(outputs) if stored is None else stored.indices
    evaluated = np.stack([quality.evaluated(threshold) for threshold in THRESHOLDS])
    found = []
    for k, index in enumerate(indices.tolist()):
        if (choice[:, index] == choice[0, index]).all():  # older galleries have images on which all members agree
            continue
        found.append(
            Example(
                index,
                stored.names[k] if stored and stored.names else None,
                classes[labels[index]],
                _predictions(quality.alone, index, classes)[::-1],
                _predictions(quality.last, index, classes),
                tuple(evaluated[:, index].tolist()),
                stored.pixels[k] if stored else None,
            )
        )
    return found


def _predictions(answers: Answers, index: int, classes: tuple[str, ...]) -> tuple[Prediction, ...]:
    columns = (values[:, index].tolist() for values in (answers.choice, answers.confidence, answers.wrong))
    return tuple(Prediction(classes[choice], p, not wrong) for choice, p, wrong in zip(*columns, strict=True))
