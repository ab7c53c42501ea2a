"""Ensemble: a module that averages the predictions of the last m snapshots."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from os import PathLike
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from .batches import arguments, check_order, count, each, first, joined, scores
from .errors import ArgumentError, MismatchError, shortened
from .snapshots import Entry, Snapshots
from .weights import tensors, unwrap

Progress = Callable[[int, int | None], object]


class Ensemble(nn.Module):
    """The mean of the softmax outputs of the last members, as one module in evaluation mode.

    `model` is any instance of the architecture; it is copied and never changed. `activation` ("softmax",
    None, or any callable of a tensor) turns scores into probabilities along `dim`. They are averaged in
    float32 or wider, with `weights` (one per snapshot, oldest first) if they are given. `steps` selects
    snapshots; the default is all that exist now.

    Resident members are all on the device, share the tensors that their snapshots share, and pass gradients
    to an input that requires them. Otherwise members are streamed through one replica, which needs the
    memory of one model; then use `predict`. For a model that returns a mapping of tensors, the ensemble
    returns a mapping of their means.

    Examples:
        >>> snapshots, model = Snapshots(), nn.Linear(1, 2)
        >>> for step, bias in ((4, [0.0, 0.0]), (8, [0.0, 1.0])):
        ...     snapshots.commit(step, {"weight": torch.zeros(2, 1), "bias": torch.tensor(bias)})
        >>> ensemble = Ensemble(snapshots, model)
        >>> ensemble(torch.zeros(1, 1))  # the mean of (0.5, 0.5) and (0.2689, 0.7311)
        tensor([[0.3845, 0.6155]])
        >>> ensemble.last = 1
        >>> ensemble(torch.zeros(1, 1))
        tensor([[0.2689, 0.7311]])
    """

    def __init__(
        self,
        snapshots: Snapshots,
        model: nn.Module,
        *,
        last: int | None = None,
        activation: Literal["softmax"] | Callable[[Tensor], Tensor] | None = "softmax",
        dim: int = -1,
        weights: Sequence[float] | None = None,
        resident: bool = True,
        device: torch.device | str | None = None,
        steps: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(snapshots, Snapshots):
            raise ArgumentError(f"snapshots must be a Snapshots, got {snapshots!r}: use Ensemble.load for a path")
        if activation is not None and activation != "softmax" and not callable(activation):
            raise ArgumentError(f"activation must be 'softmax', None or a callable, got {activation!r}")
        self.activation, self.dim, self.resident = activation, dim, resident
        self._snapshots = snapshots
        chosen = set(snapshots.steps if steps is None else steps)
        self._steps = sorted(chosen, reverse=True)  # newest first, like all lists here
        if not self._steps:
            raise ArgumentError(
                f"snapshots must not be empty, got {snapshots} without a snapshot: train to the end of a cycle"
            )
        self._weights = _checked_weights(weights, len(self._steps))
        self._entries: list[Mapping[str, Entry]] = []  # the tensors of each member that was used so far
        self._replicas = nn.ModuleList([_copied(model, device)])
        self._loaded: list[Mapping[str, Entry]] = [{}]  # the tensors that each replica holds
        self.last = len(self._steps) if last is None else last
        self.eval()

    @classmethod
    def load(cls, store: str | PathLike[str] | Snapshots, model: nn.Module, **options: Any) -> Self:
        """The ensemble of the snapshots in a folder; `options` are those of the constructor."""
        return cls(store if isinstance(store, Snapshots) else Snapshots(store), model, **options)

    @property
    def last(self) -> int:
        """The number m of members that are averaged: the m newest ones. It can be set."""
        return self._last

    @last.setter
    def last(self, last: int) -> None:
        if not isinstance(last, int) or not 1 <= last <= len(self._steps):
            raise ArgumentError(f"last must be between 1 and {len(self._steps)} (the number of members), got {last!r}")
        if not any(self._weights[:last]):
            raise ArgumentError(
                f"weights must not all be 0 for the last {last} members: raise last or change the weights"
            )
        for step in self._steps[len(self._entries) : last]:
            entries = self._snapshots.entries(step)
            _check_fit(step, entries, tensors(self._replicas[0]))
            self._entries.append(entries)
        for index in range(last if self.resident else 1):
            self._member(index)
        self._last = last

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the members that are averaged, oldest first."""
        return tuple(self._steps[: self.last][::-1])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The mean of the members for one batch; the arguments are those of the model."""
        *_, (_, mean) = self.anytime(*args, **kwargs)
        return mean

    def anytime(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Any]]:
        """Yield (k, mean of the last k members) for k = 1 … m: stop when the prediction is good enough."""
        total = None
        for index in range(self.last):
            output = self._weighted(index, args, kwargs)
            total = output if total is None else each(torch.add, total, output)
            if weight := sum(self._weights[: index + 1]):
                yield index + 1, each(lambda tensor, w=weight: tensor / w, total)

    def predict(
        self, loader: Iterable[Any], *, inputs: Callable[[Any], Any] = first, progress: Progress | None = None
    ) -> Any:
        """The mean of the members for all batches of a loader, joined on the CPU; each member is loaded once.

        A batch that is a tensor is the argument of the model, and a mapping is its keyword arguments. The first
        element of a tuple, named tuple or list is the input. `inputs` selects another input from a batch; if it
        is a plain or named tuple, it is several arguments. The loader is read once per member and must keep its
        order. `progress` is called after every batch with the number of batches read and the total number
        of batches (None if unknown).
        """
        total: list[Any] = []
        for outputs in self._passes(loader, inputs, progress, weighted=True):
            total = [each(torch.add, *pair) for pair in zip(total, outputs, strict=True)] if total else outputs
        return each(lambda tensor: tensor / sum(self._weights[: self.last]), joined(total))

    def predict_members(
        self, loader: Iterable[Any], *, inputs: Callable[[Any], Any] = first, progress: Progress | None = None
    ) -> Any:
        """Like `predict`, but without the mean: (members, examples, classes), oldest first, as `metrics` expects."""
        members = [joined(outputs) for outputs in self._passes(loader, inputs, progress, weighted=False)]
        return each(lambda *newest_first: torch.stack(newest_first[::-1]), *members)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode; `mode` is ignored."""
        return super().train(False)

    def __repr__(self) -> str:
        return f"Ensemble(steps={self.steps}, resident={self.resident})"

    def _passes(
        self, loader: Iterable[Any], inputs: Callable[[Any], Any], progress: Progress | None, weighted: bool
    ) -> Iterator[list[Any]]:
        """The outputs of each member for all batches, newest member first."""
        check_order(loader)
        device = next(iter(tensors(self._replicas[0]).values())).device
        batches, done, shapes = count(loader), 0, None
        for index in range(self.last):
            outputs = []
            for batch in loader:
                args, kwargs = arguments(inputs(batch), device)
                with torch.no_grad():
                    output = (self._weighted if weighted else self._output)(index, args, kwargs)
                outputs.append(each(Tensor.cpu, output))
                done += 1
                if progress is not None:
                    progress(done, None if batches is None else batches * self.last)
            before, shapes = shapes, [each(lambda tensor: tensor.shape, output) for output in outputs]
            if not outputs or before not in (None, shapes):
                raise ArgumentError("loader must yield the same batches, at least one, for every member: use a list")
            yield outputs

    def _weighted(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return each(lambda tensor: tensor * self._weights[index], self._output(index, args, kwargs))

    def _output(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return each(self._activated, scores(self._member(index)(*args, **kwargs)))

    def _activated(self, scores: Tensor) -> Tensor:
        if scores.requires_grad and not self.resident:  # the next member overwrites the tensors that backward() needs
            raise ArgumentError("resident must be True for gradients of the input, got False: set it, or use no_grad()")
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.activation == "softmax":
            return scores.softmax(self.dim)
        return scores if self.activation is None else self.activation(scores)

    def _member(self, index: int) -> nn.Module:
        """The replica of a member, after reading the tensors that it does not hold yet."""
        slot, entries = (index if self.resident else 0), self._entries[index]
        if slot == len(self._replicas):
            self._replicas.append(self._sibling(entries))
        if self._loaded[slot] is not entries:
            held, self._loaded[slot] = self._loaded[slot], {}
            live = tensors(self._replicas[slot])
            with torch.no_grad():
                for name, entry in entries.items():
                    if held.get(name) != entry:
                        live[name].copy_(entry.read())
            self._loaded[slot] = entries
        return self._replicas[slot]

    @torch.inference_mode(False)
    def _sibling(self, entries: Mapping[str, Entry]) -> nn.Module:
        """Another replica, which shares the tensors of equal content that are already on the device."""
        bank: dict[Entry, Tensor] = {}
        for replica, held in zip(self._replicas, self._loaded, strict=True):
            bank |= {held[name]: tensor for name, tensor in tensors(replica).items()}
        shared = {name: entry for name, entry in entries.items() if entry in bank}
        self._loaded.append(shared)
        newest = tensors(self._replicas[0])
        return deepcopy(self._replicas[0], {id(newest[name]): bank[entry] for name, entry in shared.items()})


@torch.inference_mode(False)
def _copied(model: nn.Module, device: torch.device | str | None) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an instance of the architecture, got {model!r}")
    if virtual := [name for name, tensor in tensors(model).items() if tensor.is_meta]:
        raise ArgumentError(f"model must have real tensors, got {virtual[0]!r} on the meta device: build it on the CPU")
    try:
        copy = deepcopy(unwrap(model))
    except Exception as error:
        raise ArgumentError(f"model must support copy.deepcopy, got {error}: pass another instance") from error
    return copy.to(device).eval().requires_grad_(False)


def _check_fit(step: int, entries: Mapping[str, Entry], live: Mapping[str, Tensor]) -> None:
    """Require that a snapshot has exactly the tensors of the model, with the same shapes."""
    wrong = [f"missing {name}" for name in live.keys() - entries.keys()]
    wrong += [f"extra {name}" for name in entries.keys() - live.keys()]
    firsts: dict[int, str] = {}
    for name in sorted(live.keys() & entries.keys()):
        stored, wanted, tied = entries[name], live[name], firsts.setdefault(id(live[name]), name)
        if stored.shape != tuple(wanted.shape):
            wrong.append(f"{name} has shape {stored.shape}, the model's is {tuple(wanted.shape)}")
        elif stored.dtype != wanted.dtype and not (stored.dtype.is_floating_point and wanted.dtype.is_floating_point):
            wrong.append(f"{name} has dtype {stored.dtype}, the model's is {wanted.dtype}")
        elif entries[tied] != stored:
            wrong.append(f"{name} is tied to {tied} in the model only")
    if wrong:
        raise MismatchError(
            f"model must have the architecture of the snapshot of step {step}, "
            f"got {shortened(sorted(wrong), separator='; ')}: build that architecture"
        )


def _checked_weights(weights: Sequence[float] | None, members: int) -> list[float]:
    """One weight per member, newest first."""
    checked = [1.0] * members if weights is None else [float(weight) for weight in weights][::-1]
    if len(checked) != members or not all(0 <= weight < float("inf") for weight in checked):
        raise ArgumentError(
            f"weights must be {members} finite numbers of at least 0, one per snapshot, got {weights!r}"
        )
    return checked
