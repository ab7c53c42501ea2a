"""Ensemble: a module that combines the predictions of snapshots."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import chain
from os import PathLike
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from .activation import Activation, check_softmax, log_probabilities, probabilities, require_sums
from .batches import arguments, class_scores, each, first, joined, scores, second, separate
from .combination import Combination, Member
from .errors import ArgumentError
from .loaders import Arguments, Progress, Visit, check_order, read
from .outputs import Outputs
from .pool import ONE_ROW, Pool, logarithm, tempered
from .replicas import Replicas
from .snapshots import Snapshots


class Ensemble(nn.Module):
    """The mean of the softmax outputs of its members, as one module in evaluation mode.

    `snapshots` are those of one run, or of several runs in a list. `model` is any instance of the architecture; it is
    copied and never changed. `activation` ("softmax", None, or any callable of a tensor) turns scores into
    probabilities along `dim`, which are averaged in float32 or wider. `combination` selects members, their weights,
    a temperature and a threshold for early exit; `last=m` is short for `Combination.last(m)`. The default is all
    snapshots that exist now, with equal weights. `preprocess` is a module that is applied to the arguments first and
    returns the input of the model; resident members share its result. `output="log_probabilities"` returns the
    logarithm of the mean, for `cross_entropy` and for frameworks that apply softmax themselves. `strict=False` accepts
    snapshots of some of the model's tensors, such as adapters; the others are those of `model`.

    Resident members are all on the device, share the tensors that their snapshots share, and pass gradients to an input
    that requires them. With `resident=False`, members are streamed: they are loaded one after the other into one model,
    so use `predict`. Several threads may predict at the same time; with streamed members, they wait for each other.
    For a model that returns a mapping of tensors, the ensemble returns a mapping of their means; tensors without
    dimensions, such as a loss, are left out. If the output has `logits`, only the mean of these is returned.

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
        snapshots: Snapshots | Sequence[Snapshots],
        model: nn.Module,
        *,
        last: int | None = None,
        combination: Combination | None = None,
        activation: Activation = "softmax",
        dim: int = -1,
        preprocess: nn.Module | None = None,
        output: Literal["probabilities", "log_probabilities"] = "probabilities",
        strict: bool = True,
        resident: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if activation is not None and activation != "softmax" and not callable(activation):
            raise ArgumentError(f"activation must be 'softmax', None or a callable, got {activation!r}")
        if output not in ("probabilities", "log_probabilities"):
            raise ArgumentError(f"output must be 'probabilities' or 'log_probabilities', got {output!r}")
        if activation is None and output != "probabilities":
            raise ArgumentError("output must be 'probabilities' if activation is None, got 'log_probabilities'")
        if last is not None and combination is not None:
            raise ArgumentError(f"last must not be given together with a combination, got {last}: remove one of them")
        self.activation, self.dim, self.output, self.resident = activation, dim, output, resident
        self._returns_logits = False  # not known before the first output
        self._runs = _by_identity(snapshots)
        existing = chain.from_iterable(store.members for store in self._runs.values())
        self._existing = sorted(existing, key=lambda member: member[1])  # runs take turns, the oldest members first
        self._replicas = Replicas(model, device, resident, strict)
        self.preprocess = None if preprocess is None else deepcopy(preprocess).to(self._replicas.device)
        chosen = combination if last is None else Combination.last(last)
        self.combination = chosen or Combination(tuple(self._existing))
        self.eval()

    @classmethod
    def load(
        cls,
        store: str | PathLike[str] | Snapshots | Sequence[str | PathLike[str] | Snapshots],
        model: nn.Module,
        **options: Any,
    ) -> Self:
        """The ensemble of the snapshots in a folder, or in several; `options` are those of the constructor."""
        stores = [store] if isinstance(store, (str, PathLike, Snapshots)) else list(store)
        return cls([one if isinstance(one, Snapshots) else Snapshots(one) for one in stores], model, **options)

    @property
    def combination(self) -> Combination:
        """How the members are combined, with each member listed. It can be set, also to members not used before."""
        return self._combination

    @combination.setter
    def combination(self, combination: Combination) -> None:
        if not isinstance(combination, Combination):
            raise ArgumentError(
                f"combination must be a Combination, got {combination!r}: Combination.load(folder) reads that of a run"
            )
        chosen = combination.among(self._existing)
        for run, step in chosen.members:
            self._replicas.add((run, step), self._runs[run])
        for member in chosen.members[::-1] if self.resident else chosen.members[-1:]:
            self._replicas.holding(member)
        self._combination = chosen

    @property
    def last(self) -> int:
        """The number of members. Setting it to m selects the last m of each run, as `Combination.last(m)` does."""
        return len(self.combination.members)

    @last.setter
    def last(self, last: int) -> None:
        self.combination = Combination.last(last)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the members, oldest first."""
        return tuple(step for _, step in self.combination.members)

    @property
    def members(self) -> tuple[nn.Module, ...]:
        """The modules of the members, in the order of `combination.members`; only for resident members."""
        if not self.resident:
            raise ArgumentError("resident must be True for separate members, got False: build another ensemble")
        return tuple(self._replicas.holding(member) for member in self.combination.members)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The prediction for one batch, from all members; the arguments are those of the model."""
        *_, pool = self._pools(args, kwargs)
        return each(self._finished, pool.mean)

    def anytime(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, Any]]:
        """Yield (k, prediction of the newest k members) for k = 1 … m: stop when the prediction is good enough."""
        for k, pool in enumerate(self._pools(args, kwargs), 1):
            yield k, each(self._finished, pool.mean)

    def predict(
        self, loader: Iterable[Any], *, inputs: Callable[[Any], Any] = first, progress: Progress | None = None
    ) -> Any:
        """The prediction for all batches of a loader, joined on the CPU in the order of the loader.

        A batch that is a tensor is the argument of the model, and a mapping is its keyword arguments. The first
        element of a tuple, named tuple or list is the input. `inputs` selects another input from a batch; if it
        is a plain or named tuple, it is several arguments. With an `exit_threshold`, each member is evaluated only
        for the examples that are still undecided: their rows are taken from each tensor with as many rows as the batch.

        For resident members, the loader is read once, and each batch is passed to all members. For streamed members,
        the loader is read once per member, and must keep its order. `progress` is called after every batch that is
        read, with the number of batches read so far and in total (None if unknown), over all passes.
        """
        check_order(loader, "in the order of the data, because predictions have no labels", "outputs()")
        pools: list[Pool] = []

        def add(member: Member, share: float, k: int, given: Arguments, batch: Any) -> Any:
            if k == len(pools):
                pools.append(Pool(self.combination.exit_threshold))
            if (undecided := pools[k].undecided(given)) is None:
                return k
            try:
                output = self._output(member, *undecided)
            except (RuntimeError, ArgumentError) as error:
                if undecided is not given:
                    error.add_note(
                        "With early exit, the model was called for some rows of a batch. If this is the reason for the "
                        f"error, use {ONE_ROW}, or exit_threshold=None."
                    )
                raise
            shape = pools[k].add(each(Tensor.cpu, output), share)
            return shape if self.combination.exit_threshold is None else k

        self._read(loader, inputs, add, progress)
        return each(self._finished, joined([pool.mean for pool in pools]))

    def outputs(
        self,
        loader: Iterable[Any],
        *,
        inputs: Callable[[Any], Any] = first,
        targets: Callable[[Any], Any] = second,
        progress: Progress | None = None,
    ) -> Outputs:
        """The outputs of every member of a classifier for all batches of a loader, with the labels.

        `inputs` and `progress` are those of `predict`. `targets` selects the labels from a batch: by default the
        second element of a tuple, named tuple or list, and the entry "labels" of a mapping. For streamed members, the
        labels must be the same in every pass over the loader.
        """
        rows: dict[Member, list[Tensor]] = {}
        labels: list[Tensor] = []

        def add(member: Member, share: float, k: int, given: Arguments, batch: Any) -> Any:
            found = class_scores(self._replicas.output(member, *given), self.dim)
            self._check(found)
            found = log_probabilities(found, self.activation)
            if k == len(labels):
                labels.append(torch.as_tensor(targets(batch)).cpu())
            elif not self.resident and not torch.equal(labels[k], torch.as_tensor(targets(batch)).cpu()):
                raise ArgumentError(
                    "loader must yield its batches in the same order for every member if members are streamed, "
                    f"got other labels in batch {k + 1}: do not shuffle, or use resident=True"
                )
            rows.setdefault(member, []).append(found)
            return found.shape

        self._read(loader, inputs, add, progress)
        # not torch.cat, which rejects float16 under autocast on the CPU
        found = [np.concatenate([part.numpy() for part in rows[member]]) for member in self.combination.members]
        given = torch.cat(labels)
        if not torch.equal(given.long().to(given.dtype), given):
            raise ArgumentError(f"targets must be class indices, got {given.dtype} with fractions: pass targets=")
        return Outputs(self.combination.members, np.stack(found), given.long().numpy())

    def activated(self, scores: Any) -> Any:
        """The probabilities, in float32 or wider, for the scores of a member: a tensor, or a dictionary of tensors."""
        self._check(scores)
        return each(self._probabilities, scores)

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode; `mode` is ignored."""
        return super().train(False)

    def __repr__(self) -> str:
        return f"Ensemble(steps={self.steps}, resident={self.resident})"

    def _read(
        self, loader: Iterable[Any], inputs: Callable[[Any], Any], visit: Visit, progress: Progress | None
    ) -> None:
        """Call `visit` for each batch and each member, newest first."""
        members = self._newest_first()
        passes = [members] if self.resident else [[one] for one in members]
        device = self._replicas.device
        read(loader, passes, lambda batch: self._prepared(*arguments(inputs(batch), device)), visit, progress)

    def _newest_first(self) -> list[tuple[Member, float]]:
        """The members, in the order in which they are evaluated, with their weights."""
        return list(zip(self.combination.members, self.combination.shares, strict=True))[::-1]

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """The arguments of the members."""
        if self.preprocess is None:
            return args, kwargs
        args, kwargs = separate((args, kwargs))  # it may change them, as a member may
        return (self.preprocess(*args, **kwargs),), {}

    def _pools(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Pool]:
        """The pool of the newest k members, k = 1 … m: always the same object."""
        (args, kwargs), pool = self._prepared(args, kwargs), Pool(None)
        for member, share in self._newest_first():
            pool.add(self._output(member, args, kwargs), share)
            yield pool

    def _output(self, member: Member, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.activated(scores(self._replicas.output(member, args, kwargs)))

    def _check(self, scores: Any) -> None:
        """Reject scores for which a softmax is wrong; values are checked once, because this waits for the device."""
        if self.activation == "softmax" and check_softmax(scores, self.dim, values=not self._returns_logits):
            self._returns_logits = True

    def _probabilities(self, scores: Tensor) -> Tensor:
        if scores.requires_grad and not self.resident:  # the next member overwrites the tensors that backward() needs
            raise ArgumentError("resident must be True for gradients of the input, got False: set it, or use no_grad()")
        found, how = probabilities(scores, self.activation, self.dim), self.combination
        if self.activation != "softmax" and (how.temperature != 1 or how.exit_threshold is not None):
            require_sums(found, self.dim, "a temperature or early exit", "use a combination without them")
        return found

    def _finished(self, mean: Tensor) -> Tensor:
        """The prediction for the mean of the members."""
        found = tempered(mean, self.combination.temperature, self.dim)
        return logarithm(found) if self.output == "log_probabilities" else found


def _by_identity(snapshots: Snapshots | Sequence[Snapshots]) -> dict[str, Snapshots]:
    """The runs by their identity, each with at least one snapshot."""
    stores = [snapshots] if isinstance(snapshots, Snapshots) else snapshots
    if not isinstance(stores, (list, tuple)) or not stores or not all(isinstance(one, Snapshots) for one in stores):
        raise ArgumentError(
            f"snapshots must be a Snapshots or a list of them, got {snapshots!r}: use Ensemble.load for a path"
        )
    if empty := [store for store in stores if not store.steps]:
        raise ArgumentError(
            f"snapshots must not be empty, got {empty[0]} without a snapshot: train to the end of a cycle"
        )
    runs = {store.identity["run"]: store for store in stores}
    if len(runs) < len(stores):
        raise ArgumentError(f"snapshots must be those of different runs, got {stores}: pass each run once, in a folder")
    return runs
