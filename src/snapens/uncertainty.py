"""Uncertainty: the prediction of an ensemble for one batch, and how much its members disagree."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import metrics
from .activation import require_classes
from .batches import class_scores, separate
from .ensemble import Ensemble
from .errors import ArgumentError
from .pool import Pool
from .prediction import tempered
from .quality import Floats, Whole


class Uncertainty(NamedTuple):
    """The prediction for each example of a batch, and how uncertain it is. Entropies are in nats."""

    probabilities: Floats
    """(examples, classes), after the temperature of the combination."""
    entropy: Floats
    """(examples,): the entropy of the probabilities."""
    mutual_information: Floats
    """(examples,): the entropy of the mean of the evaluated members minus their mean entropy, without the temperature.

    With a temperature below 1 it can be greater than `entropy`.
    """
    used: Whole
    """(examples,): how many members were evaluated; fewer than all only with an exit threshold."""


@torch.no_grad()
def predict(ensemble: Ensemble, inputs: Tensor) -> Uncertainty:
    """The prediction of `ensemble.predict` for a classifier, with its uncertainty; members must be resident.

    Examples:
        >>> from snapens import Snapshots
        >>> snapshots, model = Snapshots(), torch.nn.Linear(1, 2)
        >>> for step, bias in ((4, [0.0, 9.0]), (8, [9.0, 0.0])):  # two members that contradict each other
        ...     snapshots.commit(step, {"weight": torch.zeros(2, 1), "bias": torch.tensor(bias)})
        >>> found = predict(Ensemble(snapshots, model), torch.zeros(1, 1))
        >>> found.probabilities, found.mutual_information.round(4), found.used
        (array([[0.5, 0.5]]), array([0.6919]), array([2]))
    """
    if not isinstance(inputs, Tensor):
        raise ArgumentError(
            f"inputs must be one batch as a tensor, got {type(inputs).__name__}: call predict once per batch"
        )
    combination, pool = ensemble.combination, Pool(ensemble.combination.exit_threshold)
    if ensemble.preprocess is not None:
        inputs = ensemble.preprocess(separate(inputs))
    used, weights, inside = np.zeros(len(inputs), np.int64), np.zeros(len(inputs)), np.zeros(len(inputs))
    for member, share in list(zip(ensemble.members, combination.shares, strict=True))[::-1]:
        if (undecided := pool.undecided(inputs)) is None:
            break
        # numpy would take a tensor of one element for an integer
        rows = pool.rows if isinstance(pool.rows, slice) else pool.rows.numpy()
        output = ensemble.activated(class_scores(member(separate(undecided)), ensemble.dim)).cpu()
        require_classes(output)
        used[rows] += 1
        weights[rows] += share
        inside[rows] += share * metrics.entropy(output)
        pool.add(output, share)
    mean = pool.mean.double().numpy()
    probabilities = tempered(mean, combination.temperature)
    information = np.maximum(metrics.entropy(mean) - inside / weights, 0)
    return Uncertainty(probabilities, metrics.entropy(probabilities), information, used)
