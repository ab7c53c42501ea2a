"""Snapshots in memory: dictionaries of tensors on the CPU."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..errors import StoreError
from .store import Entry
from .tensorfile import Spec


class Held:
    """One tensor in memory, the counterpart of `Stored`. Only the same object is equal."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape)
        self._tensor = tensor

    def read(self) -> Tensor:
        """The tensor itself; do not change it."""
        return self._tensor

    def holds(self, tensor: Tensor) -> bool:
        """Whether this is the tensor's content, bit for bit."""
        same = (tensor.dtype, tuple(tensor.shape)) == (self.dtype, self.shape)
        return same and torch.equal(_bits(tensor), _bits(self._tensor))


class Memory:
    """A `Store` in the memory of the process."""

    run = "memory"

    def __init__(self) -> None:
        self._snapshots: dict[int, dict[str, Entry]] = {}

    @property
    def steps(self) -> dict[int, str]:
        """The committed snapshots, ascending; they have no names."""
        return dict.fromkeys(self._snapshots, "memory")

    def entries(self, step: int) -> dict[str, Entry]:
        """The stored tensors of a snapshot by name."""
        return self._snapshots[step]

    def reserve(self, step: int) -> str:
        """The name of every snapshot in memory."""
        return "memory"

    def append(
        self,
        step: int,
        specs: Mapping[str, Spec],
        tensors: Iterable[tuple[str, Tensor | Entry]],
        tied: Mapping[str, str],
        partial: bool,
    ) -> None:
        """Hold a snapshot."""
        held = {name: Held(item) if isinstance(item, Tensor) else item for name, item in tensors}
        self._snapshots[step] = held | {name: held[first] for name, first in tied.items()}

    def rewind(self, step: int) -> None:
        """Discard the snapshots after `step`."""
        self._snapshots = {kept: held for kept, held in self._snapshots.items() if kept <= step}

    def open_to_write(self, resume: bool) -> None:
        """Only check that snapshots exist only with `resume`."""
        if self._snapshots and not resume:
            raise StoreError(
                f"store must be without snapshots, got steps {list(self._snapshots)}: use another, or pass resume=True"
            )

    def close(self) -> None:
        """Nothing to do."""


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)
