"""What the stores of snapshots have in common, whether they hold them in a folder or in memory."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from .tensorfile import Spec


class Entry(Protocol):
    """Where one tensor of a snapshot lies. Equal entries have the same content."""

    @property
    def dtype(self) -> torch.dtype:
        """The tensor's dtype."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""

    def read(self) -> Tensor:
        """The tensor, not to be changed."""

    def holds(self, tensor: Tensor) -> bool:
        """Whether this is the tensor's content, bit for bit."""


class Store(Protocol):
    """The snapshots of one run, keyed by completed step."""

    @property
    def run(self) -> str:
        """The identity of the run."""

    @property
    def steps(self) -> dict[int, str]:
        """The committed snapshots, ascending: step -> a name that no other snapshot of the run has had."""

    def entries(self, step: int) -> Mapping[str, Entry]:
        """Where each tensor of a snapshot lies."""

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
        """Commit a snapshot, whole or not at all.

        `specs` describes every tensor in the order of `tensors`, which gives them one at a time: a contiguous tensor
        on the CPU, or the entry of the store that already holds its content. An error that it raises leaves no trace.
        `tied` gives the names that stand for another name's tensor.
        """

    def rewind(self, step: int) -> None:
        """Forget the snapshots after `step`."""

    def open_to_write(self, resume: bool) -> None:
        """Become the one writer; a store that holds snapshots is accepted only with `resume`."""

    def close(self) -> None:
        """Give up the right to write; reading remains possible."""
