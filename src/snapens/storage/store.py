"""The interface of the stores of snapshots, in a folder or in memory."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from .tensorfile import Spec


class Entry(Protocol):
    """One stored tensor of a snapshot. Equal entries have the same content."""

    @property
    def dtype(self) -> torch.dtype:
        """The tensor's dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""

    def read(self) -> Tensor:
        """The tensor; do not change it."""

    def holds(self, tensor: Tensor) -> bool:
        """Whether this is the tensor's content, bit for bit."""


class Store(Protocol):
    """The snapshots of one run, keyed by completed step."""

    @property
    def run(self) -> str:
        """The identity of the run."""

    @property
    def steps(self) -> dict[int, str]:
        """The committed snapshots, ascending: step -> a name that is unique in the run."""

    def entries(self, step: int) -> Mapping[str, Entry]:
        """The stored tensors of a snapshot by name."""

    def reserve(self, step: int) -> str:
        """The name that the snapshot of a step will have if it is committed next."""

    def append(
        self,
        step: int,
        specs: Mapping[str, Spec],
        tensors: Iterable[tuple[str, Tensor | Entry]],
        tied: Mapping[str, str],
        partial: bool,
    ) -> None:
        """Commit a snapshot completely or not at all.

        `specs` describes every tensor in the order of `tensors`, which yields them one at a time: a contiguous tensor
        on the CPU, or the entry of the store that already holds its content. If it raises an error, nothing is stored.
        `tied` maps the names of tied tensors to the name that is stored.
        """

    def rewind(self, step: int) -> None:
        """Discard the snapshots after `step`."""

    def open_to_write(self, resume: bool) -> None:
        """Become the only writer; a store that holds snapshots is accepted only with `resume`."""

    def close(self) -> None:
        """Release the store to other writers; reading remains possible."""
