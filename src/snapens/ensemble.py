"""Ensemble: a module that averages what the last m snapshots predict."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from copy import deepcopy
from os import PathLike
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from .errors import ArgumentError, MismatchError
from .snapshots import Entry, Snapshots
from .weights import tensors, unwrap

Output = Tensor | dict[str, Tensor]
"""What a member returns: a tensor of scores, or several by name."""


class Ensemble(nn.Module):
    """The mean of the last members' softmax, as one module in evaluation mode.

    `model` is any instance of the architecture; it is copied and never touched. Scores are turned
    into probabilities along `dim` by `activation` ("softmax", None, or any callable of a tensor) and
    averaged in float32 or wider, with `weights` (one a snapshot, oldest first) where they are given.
    Resident members are all on the device and share what their snapshots share; otherwise they are
    streamed through one replica, which costs the memory of one model, and `predict` is the way to use it.

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
    ) -> None:
        super().__init__()
        if not snapshots.steps:
            raise ArgumentError(
                f"snapshots must hold at least one snapshot, got {snapshots} with none: train to the end of a cycle"
            )
        if isinstance(activation, str) and activation != "softmax":
            raise ArgumentError(f"activation must be 'softmax', None or a callable, got {activation!r}")
        self.activation, self.dim, self.resident = activation, dim, resident
        self._steps = snapshots.steps[::-1]  # newest first, as everywhere below
        self._entries = [snapshots.entries(step) for step in self._steps]
        self._weights = _checked_weights(weights, len(self._steps))
        self._replicas = nn.ModuleList([_copied(model, device)])
        for step, entries in zip(self._steps, self._entries, strict=True):
            _check_fit(step, entries, tensors(self._replicas[0]))
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
        self._last = last
        for index in range(last if self.resident else 1):
            self._member(index)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the members that are averaged, oldest first."""
        return self._steps[: self.last][::-1]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The members' mean for one batch, whatever arguments the model takes."""
        *_, (_, mean) = self.anytime(*args, **kwargs)
        return mean

    def anytime(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Any]]:
        """(k, mean of the last k members) for k = 1 … m: stop whenever the answer is good enough."""
        total: Output | None = None
        for index in range(self.last):
            output = self._weighted(index, args, kwargs)
            total = output if total is None else _map(torch.add, total, output)
            if weight := sum(self._weights[: index + 1]):
                yield index + 1, _map(lambda tensor, w=weight: tensor / w, total)

    def predict(
        self,
        loader: Iterable[Any],
        *,
        inputs: Callable[[Any], Any] | None = None,
        progress: Callable[[int, int | None], object] | None = None,
    ) -> Any:
        """The members' mean for all batches of a loader, joined on the CPU; each member is loaded once.

        A batch that is a tensor or a mapping is the model's input, as an argument or as keywords; of a
        tuple or list the first element is. `inputs` picks something else from a batch; a tuple that it
        returns is several arguments. The loader is gone through once a member and must keep its order.
        `progress` is called after every batch with the batches done and those there are (None if unknown).
        """
        total: list[Output] = []
        for index, outputs in enumerate(self._passes(loader, inputs, progress)):
            total = [_map(torch.add, *pair) for pair in zip(total, outputs, strict=True)] if index else outputs
        return _map(lambda tensor: tensor / sum(self._weights[: self.last]), _joined(total))

    def predict_members(
        self,
        loader: Iterable[Any],
        *,
        inputs: Callable[[Any], Any] | None = None,
        progress: Callable[[int, int | None], object] | None = None,
    ) -> Any:
        """As `predict`, but (members, examples, classes), oldest member first and unweighted: what `metrics` takes."""
        each = [_joined(outputs) for outputs in self._passes(loader, inputs, progress, weighted=False)]
        return _map(lambda *members: torch.stack(members[::-1]), *each)

    def train(self, mode: bool = True) -> Self:
        """Members predict as they were evaluated: evaluation mode, whatever is asked for."""
        return super().train(False)

    def __repr__(self) -> str:
        return f"Ensemble(steps={self.steps}, resident={self.resident})"

    def _passes(
        self,
        loader: Iterable[Any],
        inputs: Callable[[Any], Any] | None,
        progress: Callable[[int, int | None], object] | None,
        weighted: bool = True,
    ) -> Iterator[list[Output]]:
        """The outputs for every batch, member after member, newest first."""
        _check_order(loader)
        device = next(iter(tensors(self._replicas[0]).values())).device
        batches = len(loader) * self.last if isinstance(loader, Sized) else None
        done, expected = 0, None
        for index in range(self.last):
            outputs = []
            for batch in loader:
                args, kwargs = _call(_moved((inputs or _first)(batch), device))
                with torch.no_grad():
                    output = self._weighted(index, args, kwargs) if weighted else self._output(index, args, kwargs)
                outputs.append(_map(Tensor.cpu, output))
                done += 1
                if progress is not None:
                    progress(done, batches)
            if expected not in (None, len(outputs)) or not outputs:
                raise ArgumentError(
                    f"loader must yield the same batches for every member, got {expected} and then {len(outputs)}"
                )
            expected = len(outputs)
            yield outputs

    def _weighted(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _map(lambda tensor: tensor * self._weights[index], self._output(index, args, kwargs))

    def _output(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _map(self._activated, _scores(self._member(index)(*args, **kwargs)))

    def _activated(self, scores: Tensor) -> Tensor:
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

    def _sibling(self, entries: Mapping[str, Entry]) -> nn.Module:
        """One more replica, made of the tensors that are on the device already wherever the content is the same."""
        bank = {
            entry: live
            for replica, held in zip(self._replicas, self._loaded, strict=True)
            for name, live in tensors(replica).items()
            for entry in [held[name]]
        }
        first = tensors(self._replicas[0])
        self._loaded.append({name: entry for name, entry in entries.items() if entry in bank})
        return deepcopy(self._replicas[0], {id(first[name]): bank[entry] for name, entry in self._loaded[-1].items()})


def _copied(model: nn.Module, device: torch.device | str | None) -> nn.Module:
    if virtual := [name for name, tensor in tensors(model).items() if tensor.is_meta]:
        raise ArgumentError(f"model must have real tensors, got {virtual[0]!r} on the meta device: build it on the CPU")
    try:
        copy = deepcopy(unwrap(model))
    except Exception as error:
        raise ArgumentError(
            f"model must be one that copy.deepcopy can copy ({error}): pass a freshly built instance"
        ) from error
    return copy.to(device).eval().requires_grad_(False)


def _check_fit(step: int, entries: Mapping[str, Entry], live: Mapping[str, Tensor]) -> None:
    """A snapshot must have the model's tensors, all of them and no others, in their shapes."""
    wrong = [f"missing {name}" for name in live.keys() - entries.keys()]
    wrong += [f"extra {name}" for name in entries.keys() - live.keys()]
    for name in live.keys() & entries.keys():
        stored, wanted = entries[name], live[name]
        if stored.shape != tuple(wanted.shape):
            wrong.append(f"{name} has shape {stored.shape}, the model's is {tuple(wanted.shape)}")
        elif stored.dtype.is_floating_point != wanted.dtype.is_floating_point:
            wrong.append(f"{name} has dtype {stored.dtype}, the model's is {wanted.dtype}")
    if wrong:
        shown = "; ".join(sorted(wrong)[:10]) + (f"; and {len(wrong) - 10} more" if len(wrong) > 10 else "")
        raise MismatchError(f"model must be of the architecture of the snapshot of step {step}, got {shown}")


def _check_order(loader: Iterable[Any]) -> None:
    if isinstance(loader, Iterator):
        raise ArgumentError(
            "loader must be an iterable to go through once a member, got an iterator: pass a DataLoader or a list"
        )
    sampler = loader.sampler if isinstance(loader, DataLoader) else None
    if isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
        raise ArgumentError(
            f"loader must keep its order from member to member, got a {type(sampler).__name__}: use shuffle=False"
        )


def _checked_weights(weights: Sequence[float] | None, members: int) -> list[float]:
    """One weight a member, newest first."""
    checked = [1.0] * members if weights is None else [float(weight) for weight in weights][::-1]
    if len(checked) != members or not all(0 <= weight < float("inf") for weight in checked):
        raise ArgumentError(f"weights must be {members} finite numbers of at least 0, one a snapshot, got {weights!r}")
    return checked


def _scores(output: Any) -> Output:
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, Mapping) and output and all(isinstance(value, Tensor) for value in output.values()):
        return dict(output)
    raise ArgumentError(
        f"model must return a tensor, a mapping of tensors or something with .logits, got {type(output).__name__}"
    )


def _map(function: Callable[..., Tensor], *outputs: Any) -> Any:
    """Apply a function to tensors, or key by key to dictionaries of them."""
    if isinstance(outputs[0], Tensor):
        return function(*outputs)
    return {key: function(*(output[key] for output in outputs)) for key in outputs[0]}


def _joined(outputs: list[Output]) -> Any:
    return _map(lambda *batches: torch.cat(batches), *outputs)


def _first(batch: Any) -> Any:
    return batch[0] if isinstance(batch, (tuple, list)) else batch


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_moved(item, device) for item in value)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    return value.to(device) if isinstance(value, Tensor) else value


def _call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}
