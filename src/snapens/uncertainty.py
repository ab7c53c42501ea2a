"""Uncertainty: the prediction of an ensemble for one batch, and how much its members disagree."""

from typing import NamedTuple

import torch
from torch import Tensor

from .batches import scores
from .ensemble import Ensemble
from .pool import Pool


class Prediction(NamedTuple):
    """The prediction for each example of a batch, on the CPU. Entropies are in nats."""

    probabilities: Tensor
    """(examples, classes)."""
    entropy: Tensor
    """(examples,): the entropy of the probabilities."""
    mutual_information: Tensor
    """(examples,): the entropy of the members' mean minus their mean entropy, before the temperature."""
    members_used: Tensor
    """(examples,): the number of members that were evaluated; fewer than all only with an exit threshold."""


@torch.no_grad()
def predict(ensemble: Ensemble, inputs: Tensor) -> Prediction:
    """The prediction of `ensemble.predict` for a classifier, with its uncertainty; members must be resident.

    Examples:
        >>> from snapens import Snapshots
        >>> snapshots, model = Snapshots(), torch.nn.Linear(1, 2)
        >>> for step, bias in ((4, [0.0, 9.0]), (8, [9.0, 0.0])):  # two members that contradict each other
        ...     snapshots.commit(step, {"weight": torch.zeros(2, 1), "bias": torch.tensor(bias)})
        >>> found = predict(Ensemble(snapshots, model), torch.zeros(1, 1))
        >>> found.probabilities, found.mutual_information, found.members_used
        (tensor([[0.5000, 0.5000]]), tensor([0.6919]), tensor([2]))
    """
    combination, pool = ensemble.combination, Pool(ensemble.combination.exit_threshold)
    if ensemble.preprocess is not None:
        inputs = ensemble.preprocess(inputs)
    used = torch.zeros(len(inputs), dtype=torch.int64)
    weights, entropies = torch.zeros(2, len(inputs))
    for member, share in list(zip(ensemble.members, combination.shares, strict=True))[::-1]:
        rows = torch.arange(len(inputs)) if pool.rows is None else pool.rows
        if not len(rows):
            break
        output = scores(member(inputs[rows.to(inputs.device)])).float().softmax(-1).cpu()
        pool.add(output, share)
        used[rows] += 1
        weights[rows] += share
        entropies[rows] += share * _entropy(output)
    mean = pool.mean
    information = (_entropy(mean) - entropies / weights).clamp(min=0)
    temperature = combination.temperature
    probabilities = mean if temperature == 1 else (mean.log() / temperature).softmax(-1)
    return Prediction(probabilities, _entropy(probabilities), information, used)


def _entropy(probabilities: Tensor) -> Tensor:
    return torch.special.entr(probabilities).sum(-1)  # type: ignore[no-any-return]
