"""Snapshots: the weights and buffers at each minimum, in memory or in a folder."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import ArgumentError, NonFiniteError, StoreError
from .storage.folder import Folder
from .storage.tensorfile import Stored


class Held:
    """One tensor in memory, as `Stored` is one in a file. Equal means the same object."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape)
        self._tensor = tensor

    def read(self) -> Tensor:
        """The tensor itself, not to be written to."""
        return self._tensor

    def holds(self, tensor: Tensor) -> bool:
        """Whether this is the tensor's content, bit for bit."""
        same = (tensor.dtype, tuple(tensor.shape)) == (self.dtype, self.shape)
        return same and torch.equal(_bits(tensor), _bits(self._tensor))


Entry = Stored | Held
"""Where one tensor of a snapshot lies: `dtype`, `shape`, `read()`. Equal entries have the same content."""


class Snapshots:
    """The snapshots of one run, keyed by completed step.

    Without a path they are held in memory, on the CPU; with one they lie in that folder, and reading
    them needs neither the training process nor a lock. Floating-point tensors wider than `dtype`
    (say `torch.bfloat16`) are stored in it; without one, as they are. A tensor whose content equals
    that of the snapshot before, such as a frozen one, is stored once.

    Examples:
        >>> snapshots = Snapshots()
        >>> snapshots.commit(4, {"weight": torch.ones(2)})
        >>> snapshots.steps
        (4,)
        >>> snapshots.load(4)
        {'weight': tensor([1., 1.])}
    """

    def __init__(self, path: str | PathLike[str] | None = None, *, dtype: torch.dtype | None = None) -> None:
        if dtype is not None and not dtype.is_floating_point:
            raise ArgumentError(f"dtype must be a floating-point type such as torch.bfloat16, got {dtype}")
        self.path = None if path is None else Path(path).absolute()  # whatever chdir comes later
        self.dtype = dtype
        self._store: _Memory | Folder = _Memory() if self.path is None else Folder(self.path)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the committed snapshots, ascending."""
        return tuple(self._store.steps)

    @property
    def identity(self) -> dict[str, Any]:
        """Tells this store, and each of its snapshots, from any other: what a checkpoint remembers."""
        return {"run": self._store.run, "snapshots": self._store.steps}

    def load(self, step: int) -> dict[str, Tensor]:
        """The tensors of one snapshot, by name, in memory of their own on the CPU."""
        return {name: entry.read().clone() for name, entry in self.entries(step).items()}

    def entries(self, step: int) -> Mapping[str, Entry]:
        """Where each tensor of one snapshot lies, to be read one at a time."""
        try:
            return self._store.entries(step)
        except KeyError:
            raise ArgumentError(f"step must be one of {self.steps}, got {step!r}") from None

    def open_to_write(self, resume: bool = False) -> None:
        """Become the one writer; a folder that already holds snapshots is refused unless `resume`."""
        self._store.open_to_write(resume)

    def close(self) -> None:
        """Give up the right to write; reading goes on."""
        self._store.close()

    def commit(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Store a snapshot, whole or not at all."""
        last = self.steps[-1] if self.steps else 0
        if step <= last:
            raise ArgumentError(
                f"step must be greater than {last}, the last one committed, got {step}: rewind() first to replace it"
            )
        first_names: dict[tuple[object, ...], str] = {}
        kept: dict[str, Tensor] = {}
        tied: dict[str, str] = {}
        for name, tensor in tensors.items():
            first = first_names.setdefault(_place(tensor), name)
            if first != name:
                tied[name] = first
            else:
                kept[name] = self._prepared(tensor)
        check_finite(kept, step)
        before = self._store.entries(last) if last else {}
        shared = {name: before[name] for name, tensor in kept.items() if name in before and before[name].holds(tensor)}
        own = {name: tensor for name, tensor in kept.items() if name not in shared}
        self._store.append(step, own, shared, tied)  # type: ignore[arg-type]  # a store's entries are of its own kind

    def rewind(self, step: int) -> None:
        """Go back to `step`: later snapshots are no longer members; the next commit removes their files."""
        self._store.rewind(step)

    def __repr__(self) -> str:
        return f"Snapshots({'' if self.path is None else repr(str(self.path))})"

    def _prepared(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if self.dtype is not None and tensor.is_floating_point() and tensor.dtype.itemsize > self.dtype.itemsize:
            tensor = tensor.to(self.dtype)
        return tensor.to("cpu").contiguous()


def check_finite(tensors: Mapping[str, Tensor], step: int) -> None:
    """Refuse weights that would be worthless as a member."""
    if bad := [name for name, tensor in tensors.items() if not _finite(tensor)]:
        shown = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        raise NonFiniteError(
            f"weights must be finite to be kept, got NaN or infinity at step {step} in {shown}: "
            "lower the rate or clip the gradient; register a buffer that is so by design with persistent=False"
        )


class _Memory:
    """Snapshots as dictionaries of tensors on the CPU."""

    run = "memory"

    def __init__(self) -> None:
        self._snapshots: dict[int, dict[str, Held]] = {}

    @property
    def steps(self) -> dict[int, str]:
        return dict.fromkeys(self._snapshots, "memory")

    def entries(self, step: int) -> dict[str, Held]:
        return self._snapshots[step]

    def append(self, step: int, own: Mapping[str, Tensor], shared: Mapping[str, Held], tied: Mapping[str, str]) -> None:
        held = {**shared, **{name: Held(tensor.clone()) for name, tensor in own.items()}}
        self._snapshots[step] = held | {name: held[first] for name, first in tied.items()}

    def rewind(self, step: int) -> None:
        self._snapshots = {kept: held for kept, held in self._snapshots.items() if kept <= step}

    def open_to_write(self, resume: bool) -> None:
        if self._snapshots and not resume:
            raise StoreError(
                f"store must be without snapshots, got {list(self._snapshots)}: use a new one, or resume=True"
            )

    def close(self) -> None:
        pass


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Tied tensors are at the same place; an empty tensor, or one that wraps others, is at no place."""
    if tensor.data_ptr() == 0:
        return (id(tensor),)
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _finite(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.dtype.itemsize == 1:  # 8-bit floats cannot be summed
        tensor = tensor.float()
    # a sum is one pass without a mask; it may overflow where every element is finite, so ask again
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)
