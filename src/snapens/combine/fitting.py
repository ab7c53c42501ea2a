"""Fit a combination on held-out outputs, and measure the gain of each fitted choice."""

import logging
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..combination import Combination
from ..errors import ArgumentError, whole_number
from ..metrics import Floats
from ..outputs import Outputs
from ..prediction import Prediction
from .calibration import LIMIT, calibrated_nll, is_limit, random_halves, worthwhile_temperature
from .exits import exit_threshold, with_early_exit
from .held_out import FEW_EXAMPLES, check_held_out
from .members import last_members, without_early_members
from .weights import greedy_weights, mixture_nll, simplex_weights, true_class_probabilities

log = logging.getLogger("snapens")

Members = int | Literal["all", "last", "greedy", "drop-early"]
Weights = Literal["equal", "simplex"]


def fit(
    outputs: Outputs,
    *,
    members: Members = "all",
    weights: Weights = "equal",
    temperature: bool = True,
    exit_loss: float | None = 0.0,
) -> Combination:
    """The combination that is best on held-out outputs.

    - `members`: "all"; a number m: the last m of each run; "last": the last m, with the m of the lowest NLL; "greedy":
      selection with replacement, which also gives weights; "drop-early": all except early ones that raise the NLL.
    - `weights`: "equal" (those of "greedy" remain), or "simplex", the weights with the lowest NLL.
      Like "greedy", it compares predictions before the temperature.
    - `temperature`: whether to fit the temperature by NLL. It stays 1 unless temperatures fitted on one half of the
      examples lower the NLL of the other half.
    - `exit_loss`: early exit may raise the error on the held-out examples by this fraction; 0: not at all; None: all
      members are always evaluated.

    Outputs of the test part are rejected. With fewer than 100 examples, neither a temperature nor early exit is fitted,
    and a warning is logged. A warning is also logged if the temperature is at an end of its range. `gains` measures the
    gain of each choice.

    Examples:
        >>> p = np.log([[[0.4, 0.6], [0.1, 0.9]], [[0.9, 0.1], [0.2, 0.8]]]).astype(np.float16)
        >>> held_out = Outputs((("a", 4), ("a", 8)), p, labels=np.array([0, 1]))
        >>> fit(held_out, members="last", temperature=False)  # the first member is wrong on the first example
        Combination(members=(('a', 8),), weights=(), temperature=1.0, exit_threshold=None, newest=None)
    """
    check_held_out(outputs)
    if (examples := len(outputs.labels)) < FEW_EXAMPLES:
        log.warning(
            "%d held-out examples are too few to fit a temperature or early exit: hold out at least %d",
            examples,
            FEW_EXAMPLES,
        )
    found = _stages(outputs, members, weights, temperature, exit_loss, _enough(outputs))[-1].combination
    if is_limit(found.temperature):
        log.warning(
            "the temperature %.3g is an end of the range from %g to %g, because the held-out examples do not determine "
            "it: hold out more examples, or fit no temperature",
            found.temperature,
            1 / LIMIT,
            LIMIT,
        )
    return found


class MeanDifference(NamedTuple):
    """A mean difference over examples, and its paired standard error."""

    mean: float
    standard_error: float

    def __str__(self) -> str:
        """With two digits of the standard error.

        Examples:
            >>> print(MeanDifference(0.02641, 0.01389))
            +0.026 ± 0.014
        """
        error = self.standard_error
        digits = max(0, 1 - math.floor(math.log10(error))) if error > 0 else 3
        return f"{self.mean:+.{digits}f} ± {error:.{digits}f}"


@dataclass(frozen=True)
class Gain:
    """The gain of one fitted choice over the combination before it, on examples that it was not fitted on."""

    choice: str
    """"temperature", "members", "weights" or "exit_threshold"."""
    nll: float
    """The NLL with this choice, in nats."""
    nll_gain: MeanDifference
    """By how much the choice lowers the NLL."""
    error: float
    """The error with this choice, a fraction."""
    error_gain: MeanDifference
    """By how much the choice lowers the error."""
    used: float
    """The mean number of members that are evaluated with this choice."""


def gains(
    outputs: Outputs,
    *,
    members: Members = "all",
    weights: Weights = "equal",
    temperature: bool = True,
    exit_loss: float | None = 0.0,
    seed: int = 0,
) -> tuple[Gain, ...]:
    """The gain of each choice of `fit`, in the order of the choices; the first is compared with the plain mean.

    A choice looks too good on the examples that it was fitted on. So everything is fitted on a random half and
    measured on the other half, in both directions, and the results for all examples are averaged. Choices on
    half of the examples are slightly worse than choices on all, so the gains of `fit` itself tend to be larger.
    Like `fit`, it fits neither a temperature nor early exit if there are fewer than 100 examples.
    """
    check_held_out(outputs)
    if len(outputs.labels) < 2:
        raise ArgumentError("outputs must have at least 2 examples to measure gains, got 1: hold out more examples")
    measured: dict[str, list[Prediction]] = {}
    for half in random_halves(len(outputs.labels), 1, seed):
        for stage in _stages(_examples(outputs, half), members, weights, temperature, exit_loss, _enough(outputs)):
            found = Prediction.of(_examples(outputs, ~half), stage.combination)
            measured.setdefault(stage.choice, []).append(found)
    joined = {
        choice: {name: np.concatenate([getattr(one, name) for one in halves]) for name in ("nll", "wrong", "used")}
        for choice, halves in measured.items()
    }
    names = list(joined)
    return tuple(_gain(now, joined[now], joined[before]) for before, now in pairwise(names))


def _gain(choice: str, now: dict[str, NDArray[Any]], before: dict[str, NDArray[Any]]) -> Gain:
    lower = {name: before[name].astype(np.float64) - now[name] for name in ("nll", "wrong")}
    nll, error = (
        MeanDifference(float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each)))) for each in lower.values()
    )
    return Gain(choice, float(now["nll"].mean()), nll, float(now["wrong"].mean()), error, float(now["used"].mean()))


class _Stage(NamedTuple):
    choice: str
    combination: Combination


def _enough(outputs: Outputs) -> bool:
    return len(outputs.labels) >= FEW_EXAMPLES


def _stages(
    outputs: Outputs, members: Members, weights: Weights, temperature: bool, exit_loss: float | None, enough: bool
) -> list[_Stage]:
    """The plain mean of all members, and the combination after each choice.

    The temperature is fitted first, and again after each choice; after that of early exit, it is fitted to predictions
    with early exit. Without `enough` examples, neither the temperature nor early exit is fitted.
    """
    temperature = temperature and enough
    if weights not in ("equal", "simplex"):
        raise ArgumentError(f"weights must be 'equal' or 'simplex', got {weights!r}")
    current, true_class = Combination(outputs.members), true_class_probabilities(outputs)
    stages = [_Stage("mean", current)]

    def add(choice: str, combination: Combination) -> None:
        fitted = worthwhile_temperature(outputs, combination) if temperature else 1.0
        stages.append(_Stage(choice, replace(combination, temperature=fitted)))

    if temperature:
        add("temperature", current)
    if members != "all":
        current = _with_members(outputs, true_class, members, temperature)
        add("members", current)
    if weights == "simplex":
        kept = [outputs.members.index(member) for member in current.members]
        add("weights", _weighted(current.members, simplex_weights(true_class[kept])))
    if exit_loss is not None:
        current = stages[-1].combination
        exits = replace(current, exit_threshold=exit_threshold(outputs, current, exit_loss))  # rejects an invalid loss
        if temperature and exits.exit_threshold is not None:
            exits = replace(exits, temperature=worthwhile_temperature(with_early_exit(outputs, exits)))
        if enough:
            stages.append(_Stage("exit_threshold", exits))
    return stages


def _with_members(outputs: Outputs, true_class: Floats, members: Members, temperature: bool) -> Combination:
    runs = [run for run, _ in outputs.members]
    if isinstance(members, Integral):  # also an integer of NumPy
        last, most = whole_number("members", members, 1), min(map(runs.count, runs))
        if last > most:
            raise ArgumentError(f"members must be between 1 and {most} (those of a run), got {members}")
        return Combination.last(last).among(outputs.members)

    def nll(weights: Floats) -> Floats:
        if temperature:  # at their best temperatures: otherwise a poor member that lowers the confidence looks good
            return calibrated_nll(outputs, weights)
        return np.array([mixture_nll(true_class, row) for row in weights])

    if members == "greedy":
        return _weighted(outputs.members, greedy_weights(true_class))
    if members == "last":
        return _weighted(outputs.members, last_members(runs, nll))
    if members == "drop-early":
        return _weighted(outputs.members, without_early_members(runs, nll))
    raise ArgumentError(f"members must be a whole number, 'all', 'last', 'greedy' or 'drop-early', got {members!r}")


def _weighted(members: tuple[tuple[str, int], ...], weights: Floats) -> Combination:
    """The members of positive weight; weights are listed only if they differ."""
    kept = weights > 0
    chosen = tuple(member for member, keep in zip(members, kept, strict=True) if keep)
    equal = np.ptp(weights[kept]) == 0
    return Combination(chosen, () if equal else tuple(weights[kept].tolist()))


def _examples(outputs: Outputs, chosen: NDArray[np.bool_]) -> Outputs:
    return replace(outputs, log_probabilities=outputs.log_probabilities[:, chosen], labels=outputs.labels[chosen])
