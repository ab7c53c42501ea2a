"""Soups: one network whose weights are the average of the weights of snapshots (Wortsman et al., 2022).

A soup predicts at the cost of one network. It works only where the error stays low on the straight line between the
snapshots. So this is measured first, and snapshots that are separated by a high barrier are rejected.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import arguments, first, scores, second, separate
from ..batchnorm import estimated_statistics, norms
from ..copies import copied
from ..errors import ArgumentError, BarrierError, MismatchError, shortened
from ..replicas import misfits
from ..snapshots import Snapshots
from ..weights import set_tensors, tensors

State = Mapping[str, Tensor]
TOLERANCE = 0.01
"""The highest accepted barrier, a fraction: one percentage point."""


@dataclass(frozen=True)
class Soup:
    """An average of weights, and the held-out errors that justify it, as fractions."""

    model: nn.Module
    """A copy of the model in evaluation mode, with averaged weights and re-estimated BatchNorm statistics."""
    members: tuple[int, ...]
    """The snapshots that are averaged."""
    error: float
    barriers: Mapping[int, float]
    """The barrier between each other snapshot and the reference: the last one (uniform) or the best one (greedy)."""


class Soups:
    """Averages the weights of snapshots and measures the errors of the averages.

    `model` is any instance of the architecture; it is copied and never changed. `snapshots` are state dicts, named by
    their positions, or `Snapshots` or a run folder, named by their steps. BatchNorm statistics of an average are
    estimated on the batches in `training` (some dozens, augmented as in training); a model without BatchNorm needs no
    such batches. Errors are measured on the batches in `held_out`: held-out training data, never the test set. `inputs`
    and `targets` select inputs and labels from a batch.

    Examples:
        >>> states = [{"weight": torch.tensor([[1.0, 0.0], [0.0, w]]), "bias": torch.zeros(2)} for w in (0.2, 1.0)]
        >>> batch = (torch.eye(2), torch.tensor([0, 1]))
        >>> soup = Soups(nn.Linear(2, 2), states, held_out=[batch]).uniform()
        >>> soup.model.weight[1, 1].item(), soup.error
        (0.6000000238418579, 0.0)
    """

    def __init__(
        self,
        model: nn.Module,
        snapshots: Snapshots | str | PathLike[str] | Sequence[State],
        *,
        training: Iterable[Any] = (),
        held_out: Iterable[Any],
        inputs: Callable[[Any], Any] = first,
        targets: Callable[[Any], Any] = second,
    ) -> None:
        for name, loader in (("training", training), ("held_out", held_out)):
            if isinstance(loader, (Iterator, Tensor)):
                raise ArgumentError(
                    f"{name} must be batches that can be read several times, got {type(loader).__name__}: "
                    "pass a DataLoader or a list"
                )
        if isinstance(snapshots, (str, PathLike)):
            snapshots = Snapshots(snapshots)
        self.members = tuple(snapshots.steps if isinstance(snapshots, Snapshots) else range(len(snapshots)))
        if not self.members:
            raise ArgumentError("snapshots must contain at least one snapshot or state dict, got none")
        self._load = snapshots.load if isinstance(snapshots, Snapshots) else snapshots.__getitem__
        self._model = copied(model)
        self._training, self._held_out, self._inputs, self._targets = training, held_out, inputs, targets
        self._errors: dict[tuple[int, ...], float] = {}

    def error(self, *members: int) -> float:
        """The held-out error of a snapshot, or of the average of several with BatchNorm statistics re-estimated."""
        key = tuple(sorted(members))
        if key not in self._errors:
            self._set(key)
            self._errors[key] = self._held_out_error()
        return self._errors[key]

    def barrier(self, one: int, other: int) -> float:
        """The error in the middle of the line between two snapshots minus the mean of the errors at its ends."""
        return self.error(one, other) - (self.error(one) + self.error(other)) / 2

    def uniform(self, tolerance: float = TOLERANCE) -> Soup:
        """The average of all snapshots.

        Raises `BarrierError` if the barrier between a snapshot and the last one is higher than `tolerance`.
        """
        *others, last = self.members
        barriers = {member: self.barrier(member, last) for member in others}
        if high := {member: height for member, height in barriers.items() if height > tolerance}:
            raise _separated(high, last, tolerance)
        return self._soup(self.members, barriers)

    def greedy(self, tolerance: float = TOLERANCE) -> Soup:
        """The best snapshot, averaged with each further one that does not raise the error, tried from the best on.

        A snapshot is left out if its barrier to the best one is higher than `tolerance`. Raises `BarrierError` if this
        leaves out all others. The held-out error is slightly too low, because the members were chosen on it.
        """
        best, *others = sorted(self.members, key=self.error)
        barriers = {member: self.barrier(best, member) for member in others}
        allowed = [member for member in others if barriers[member] <= tolerance]
        if others and not allowed:
            raise _separated(barriers, best, tolerance)
        chosen: tuple[int, ...] = (best,)
        for member in allowed:
            if self.error(*chosen, member) <= self.error(*chosen):
                chosen = (*chosen, member)
        return self._soup(tuple(sorted(chosen)), barriers)

    def _soup(self, members: tuple[int, ...], barriers: dict[int, float]) -> Soup:
        self._set(members)
        return Soup(deepcopy(self._model), members, self._held_out_error(), barriers)

    def _set(self, members: tuple[int, ...]) -> None:
        """Give the model a snapshot with its own statistics, or an average of several with estimated statistics."""
        state = average(self._load(member) for member in members)
        _check_fit(state, tensors(self._model))
        set_tensors(self._model, state)
        if len(members) > 1 and norms(self._model):
            with estimated_statistics(self._model):
                batches = sum(1 for batch in self._training if self._output(batch) is not None)
            if not batches:
                raise ArgumentError(
                    "training must have at least one batch, because the model has BatchNorm layers, got none: "
                    "pass some training batches"
                )

    @torch.no_grad()
    def _held_out_error(self) -> float:
        wrong = examples = 0
        for batch in self._held_out:
            choice, labels = self._output(batch).argmax(-1).cpu(), torch.as_tensor(self._targets(batch)).cpu()
            if choice.shape != labels.shape:
                raise ArgumentError(
                    f"held_out must have one label per output, got labels of shape {tuple(labels.shape)} for "
                    f"{tuple(choice.shape)}: pass targets=, a function of a batch"
                )
            wrong, examples = wrong + int((choice != labels).sum()), examples + labels.numel()
        if not examples:
            raise ArgumentError(
                "held_out must have at least one example, got none: hold out a part of the training data"
            )
        return wrong / examples

    def _output(self, batch: Any) -> Tensor:
        device = next(iter(tensors(self._model).values())).device
        args, kwargs = separate(arguments(self._inputs(batch), device))
        output = scores(self._model(*args, **kwargs))
        if not isinstance(output, Tensor) or output.ndim < 2 or output.shape[-1] < 2:
            shown = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else "a mapping"
            raise ArgumentError(
                f"model must return one tensor with two or more scores per example for a soup, got {shown}: "
                "wrap the model"
            )
        return output


def average(states: Iterable[State]) -> dict[str, Tensor]:
    """The mean of tensors by name, computed in float64; whole numbers, such as counts, are those of the last state.

    Examples:
        >>> average({"w": torch.tensor([w]), "n": torch.tensor(n)} for w, n in ((1.0, 3), (2.0, 5)))
        {'w': tensor([1.5000]), 'n': tensor(5)}
    """
    totals: dict[str, Tensor] = {}
    last: State = {}
    count = 0
    for last in states:  # one at a time: the total and one state are in memory
        count += 1
        if totals:
            _check_fit(last, totals)
        for name, tensor in last.items():
            totals[name] = tensor.double() + totals.get(name, 0.0) if tensor.is_floating_point() else tensor
    if not count:
        raise ArgumentError("states must contain at least one state dict, got none")
    return {
        name: (totals[name] / count).to(tensor.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in last.items()
    }


def _check_fit(state: State, live: State) -> None:
    if wrong := misfits(state, live):
        raise MismatchError(
            f"snapshots must have the tensors of the model, got {shortened(sorted(wrong), separator='; ')}: "
            "average snapshots of one architecture"
        )


def _separated(barriers: Mapping[int, float], reference: int, tolerance: float) -> BarrierError:
    heights = shortened([f"{height:.2%} from {member}" for member, height in barriers.items()])
    return BarrierError(
        f"snapshots must be connected by lines with an error barrier of at most {tolerance:.2%} to be averaged, "
        f"got {heights} to {reference}: average their predictions with Ensemble, or choose later snapshots"
    )
