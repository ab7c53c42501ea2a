"""Predictor: an ensemble as a fast function of a batch."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..activation import check_softmax
from ..batches import class_scores
from ..ensemble import Ensemble
from ..errors import ArgumentError, whole_number
from ..weights import tensors
from .captured import Captured, NotCapturableError
from .eager import Eager
from .members import Accelerate, prepared, set_channels_last
from .plan import Plan

log = logging.getLogger("snapens")

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024)
TOGETHER = (32, 64)  # on an H200, all five members for 32 rows take no longer than the newest, a wait and the others
_EXAMPLE_ROWS = 2  # with which a changed network is checked
_DTYPES = {"cuda": (torch.bfloat16, torch.float16, torch.float32), "cpu": (torch.float32, torch.bfloat16)}


class BatchPrediction(NamedTuple):
    """The prediction for a batch, on the device of the ensemble."""

    probabilities: Tensor
    """(batch, classes), float32."""
    members_used: Tensor
    """(batch,), int64: after how many members each row stopped; all of them, if there is no exit_threshold."""


class Predictor:
    """The same prediction as `Ensemble.predict`, but faster, for one tensor at a time.

    The members are copied as they are now, with the ensemble's combination; later changes of the ensemble have no
    effect. BatchNorm is folded into the layer before it. On a GPU, members are captured as CUDA graphs, in bfloat16
    by default: one set per batch size in `sizes`. Smaller batches are padded to the next size, and larger batches are
    split. With an `exit_threshold`, only undecided rows continue to the next member. The host waits for the device
    before it continues. To avoid this for few rows, batches of up to `together[0]` rows are evaluated by all members at
    the same time, and up to `together[1]` rows that remain after the first member are evaluated by all others.

    `example` is a batch of typical inputs of the ensemble (one or more rows). `accelerate` switches on the kernels of
    a network, if it has any, and returns whether it did.

    Examples:
        >>> from snapens import Snapshots
        >>> snapshots, model = Snapshots(), nn.Linear(1, 2)
        >>> for step, bias in ((4, [0.0, 0.0]), (8, [0.0, 1.0])):
        ...     snapshots.commit(step, {"weight": torch.zeros(2, 1), "bias": torch.tensor(bias)})
        >>> predictor = Predictor(Ensemble(snapshots, model), torch.zeros(1, 1))
        >>> predictor(torch.zeros(1, 1)).probabilities  # the mean of (0.5, 0.5) and (0.2689, 0.7311)
        tensor([[0.3845, 0.6155]])
    """

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(
        self,
        ensemble: Ensemble,
        example: Tensor,
        *,
        dtype: torch.dtype | None = None,
        sizes: Sequence[int] = SIZES,
        together: tuple[int, int] = TOGETHER,
        accelerate: Accelerate | None = None,
    ) -> None:
        members, sizes = _members(ensemble), _checked_sizes(sizes)
        self.device = next(iter(tensors(members[0]).values())).device
        self.dtype = _checked_dtype(dtype, self.device)
        self._preprocess = deepcopy(ensemble.preprocess)
        few = self._preprocessed(_checked_example(example)[:_EXAMPLE_ROWS].to(self.device)).contiguous()
        self._example = few.float() if few.is_floating_point() else few
        self._largest = sizes[-1]
        with self._on_device():
            self._run = self._prepared(members, Plan.of(ensemble.combination), sizes, together, accelerate)

    def _prepared(
        self,
        members: Sequence[nn.Module],
        plan: Plan,
        sizes: Sequence[int],
        together: tuple[int, int],
        accelerate: Accelerate | None,
    ) -> Eager | Captured:
        reduced = {"enabled": False} if self.dtype == torch.float32 else {"dtype": self.dtype}
        precision = partial(torch.autocast, self.device.type, **reduced)
        networks = [prepared(member, self._example, self.dtype, accelerate) for member in members[::-1]]
        with precision():
            check_softmax(class_scores(networks[0](self._example.clone())), -1)
        if set_channels_last(networks, self._example, precision):
            self._example = self._example.contiguous(memory_format=torch.channels_last)
        if self.device.type == "cuda":
            try:
                return Captured(networks, plan, precision, self._example, sizes, together)
            except NotCapturableError as error:
                log.warning("the members cannot be captured as CUDA graphs, so predictions are slower: %s", error)
        return Eager(networks, plan, precision, self._example)

    @property
    def captured(self) -> bool:
        """Whether the members run as CUDA graphs."""
        return isinstance(self._run, Captured)

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> BatchPrediction:
        """The prediction for inputs (batch, …), on any device."""
        inputs = self._preprocessed(inputs)
        self._check(inputs)
        with self._on_device():
            parts = [self._run(part) for part in torch.split(inputs, self._largest)]
        return BatchPrediction(
            *(column[0] if len(parts) == 1 else torch.cat(column) for column in zip(*parts, strict=True))
        )

    def _preprocessed(self, inputs: Any) -> Any:
        """The inputs of the members, from those of the ensemble."""
        if self._preprocess is None or not isinstance(inputs, Tensor):
            return inputs
        return self._preprocess(inputs.to(self.device, copy=True))

    def _on_device(self) -> AbstractContextManager[Any]:
        """Make the GPU of the ensemble the current one: kernels are launched there."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def _check(self, inputs: Any) -> None:
        example = self._example
        if not isinstance(inputs, Tensor) or inputs.ndim != example.ndim or inputs.shape[1:] != example.shape[1:]:
            shown = f"shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ArgumentError(
                f"inputs must be a tensor of shape (batch, {', '.join(map(str, example.shape[1:]))}), as the example "
                f"was, got {shown}: use Ensemble.predict for other inputs"
            )
        if inputs.is_floating_point() != example.is_floating_point() or not len(inputs):
            raise ArgumentError(
                f"inputs must have at least one row, and a dtype like {example.dtype}, "
                f"got {len(inputs)} rows of {inputs.dtype}"
            )


def _members(ensemble: Ensemble) -> tuple[nn.Module, ...]:
    if not isinstance(ensemble, Ensemble):
        raise ArgumentError(f"ensemble must be an Ensemble, got {type(ensemble).__name__}")
    if not ensemble.resident:
        raise ArgumentError("ensemble must have resident members, got resident=False: build it with resident=True")
    if ensemble.activation != "softmax" or ensemble.dim not in (-1, 1):
        raise ArgumentError(
            f"ensemble must have activation='softmax' and dim=-1, got {ensemble.activation!r} and {ensemble.dim}: "
            "use Ensemble.predict"
        )
    if ensemble.output != "probabilities":
        raise ArgumentError(
            f"ensemble must have output='probabilities', got {ensemble.output!r}: build another ensemble, and take the "
            "logarithm of what Predictor returns"
        )
    return ensemble.members


def _checked_example(example: Any) -> Tensor:
    if not isinstance(example, Tensor) or example.ndim < 1 or not len(example):
        shown = f"shape {tuple(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
        raise ArgumentError(f"example must be one tensor (batch, …) with at least one row, got {shown}")
    return example.detach()


def _checked_dtype(dtype: torch.dtype | None, device: torch.device) -> torch.dtype:
    possible = _DTYPES.get(device.type, (torch.float32,))
    if dtype is not None and dtype not in possible:
        raise ArgumentError(f"dtype must be one of {', '.join(map(str, possible))} on {device.type}, got {dtype}")
    return dtype or possible[0]


def _checked_sizes(sizes: Sequence[int]) -> list[int]:
    found = sorted({whole_number("sizes", size, 1) for size in sizes})
    if not found:
        raise ArgumentError("sizes must contain at least one batch size, got none")
    return found
