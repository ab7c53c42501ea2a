"""Ensemble: a module that averages what the last m snapshots predict."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from os import PathLike
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from .batches import arguments, check_order, count, each, first, joined, scores
from .errors import ArgumentError, MismatchError
from .snapshots import Entry, Snapshots
from .weights import tensors, unwrap

Progress = Callable[[int, int | None], object]


class Ensemble(nn.Module):
    """The mean of the last members' softmax, as one module in evaluation mode.

    `model` is any instance of the architecture; it is copied and never touched. Scores are turned
    into probabilities along `dim` by `activation` ("softmax", None, or any callable of a tensor) and
    averaged in float32 or wider, with `weights` (one a snapshot, oldest first) where they are given;
    `steps` chooses snapshots, by default all that there are now. Resident members are all on the device, share what
    their snapshots share, and pass gradients to an input that asks for them. Otherwise they are streamed
    through one replica, which costs the memory of one model, and `predict` is the way to use it.
    A model that returns several tensors by name gives means by the same names.

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
        self._steps = sorted(set(snapshots.steps if steps is None else steps), reverse=True)  # newest first, as below
        if not self._steps:
            raise ArgumentError(f"snapshots must hold at least one, got {snapshots} with none: train to a cycle's end")
        self._weights = _checked_weights(weights, len(self._steps))
        self._entries: list[Mapping[str, Entry]] = []  # what the members are made of, as far as they were needed
        self._replicas = nn.ModuleList([_copied(model, device)])
        self._loaded: list[Mapping[str, Entry]] = [{}]  # what each replica holds
        self.last = len(self._steps) if last is None else last
        self.eval()

    @classmethod
    def load(cls, store: str | PathLike[str] | Snapshots, model: nn.Module, **options: Any) -> Self:
        """The ensemble of a folder's snapshots; `options` are the constructor's."""
        return cls(store if isinstance(store, Snapshots) else Snapshots(store), model, **options)

    @property
    def last(self) -> int:
        """m: how many members are averaged, counted from the last snapshot backwards. Can be set."""
        return self._last

    @last.setter
    def last(self, last: int) -> None:
        if not isinstance(last, int) or not 1 <= last <= len(self._steps):
            raise ArgumentError(f"last must be between 1 and {len(self._steps)} (the members there are), got {last!r}")
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
        """The members' mean for one batch, whatever arguments the model takes."""
        *_, (_, mean) = self.anytime(*args, **kwargs)
        return mean

    def anytime(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Any]]:
        """(k, mean of the last k members) for k = 1 … m: stop whenever the answer is good enough."""
        total = None
        for index in range(self.last):
            output = self._weighted(index, args, kwargs)
            total = output if total is None else each(torch.add, total, output)
            if weight := sum(self._weights[: index + 1]):
                yield index + 1, each(lambda tensor, w=weight: tensor / w, total)

    def predict(
        self, loader: Iterable[Any], *, inputs: Callable[[Any], Any] = first, progress: Progress | None = None
    ) -> Any:
        """The members' mean for all batches of a loader, joined on the CPU; each member is loaded once.

        A batch that is a tensor or a mapping is the model's input, as an argument or as keywords; of a
        tuple or list the first element is. `inputs` picks something else from a batch; a tuple that it
        returns is several arguments. The loader is gone through once a member and must keep its order.
        `progress` is called after every batch with the batches done and those there are (None if unknown).
        """
        total: list[Any] = []
        for outputs in self._passes(loader, inputs, progress, weighted=True):
            total = [each(torch.add, *pair) for pair in zip(total, outputs, strict=True)] if total else outputs
        return each(lambda tensor: tensor / sum(self._weights[: self.last]), joined(total))

    def predict_members(
        self, loader: Iterable[Any], *, inputs: Callable[[Any], Any] = first, progress: Progress | None = None
    ) -> Any:
        """As `predict`, but (members, examples, classes), oldest first and unweighted: what `metrics` takes."""
        members = [joined(outputs) for outputs in self._passes(loader, inputs, progress, weighted=False)]
        return each(lambda *newest_first: torch.stack(newest_first[::-1]), *members)

    def train(self, mode: bool = True) -> Self:
        """Members predict as they were evaluated: evaluation mode, whatever is asked for."""
        return super().train(False)

    def __repr__(self) -> str:
        return f"Ensemble(steps={self.steps}, resident={self.resident})"

    def _passes(
        self, loader: Iterable[Any], inputs: Callable[[Any], Any], progress: Progress | None, weighted: bool
    ) -> Iterator[list[Any]]:
        """The outputs for every batch, member after member, newest first."""
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
                raise ArgumentError("loader must yield the same batches for every member, and at least one: use a list")
            yield outputs

    def _weighted(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return each(lambda tensor: tensor * self._weights[index], self._output(index, args, kwargs))

    def _output(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return each(self._activated, scores(self._member(index)(*args, **kwargs)))

    def _activated(self, scores: Tensor) -> Tensor:
        if scores.requires_grad and not self.resident:  # the next member overwrites what backward() would need
            raise ArgumentError("resident must be True for gradients to reach the input, got False: or use no_grad()")
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.activation == "softmax":
            return scores.softmax(self.dim)
        return scores if self.activation is None else self.activation(scores)

    def _member(self, index: int) -> nn.Module:
        """The replica that holds a member, after reading into it whatever it does not hold yet."""
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
        """One more replica, made of the tensors that are on the device already wherever the content is the same."""
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
        raise ArgumentError(
            f"model must be one that copy.deepcopy can copy, got {error}: pass another instance"
        ) from error
    return copy.to(device).eval().requires_grad_(False)


def _check_fit(step: int, entries: Mapping[str, Entry], live: Mapping[str, Tensor]) -> None:
    """A snapshot must have the model's tensors, all of them and no others, in their shapes."""
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
            wrong.append(f"{name} is tied to {tied} in the model alone")
    if wrong:
        shown = "; ".join(sorted(wrong)[:10]) + (f"; and {len(wrong) - 10} more" if len(wrong) > 10 else "")
        raise MismatchError(
            f"model must be of the architecture of the snapshot of step {step}, got {shown}: build that one"
        )


def _checked_weights(weights: Sequence[float] | None, members: int) -> list[float]:
    """One weight a member, newest first."""
    checked = [1.0] * members if weights is None else [float(weight) for weight in weights][::-1]
    if len(checked) != members or not all(0 <= weight < float("inf") for weight in checked):
        raise ArgumentError(f"weights must be {members} finite numbers of at least 0, one a snapshot, got {weights!r}")
    return checked
