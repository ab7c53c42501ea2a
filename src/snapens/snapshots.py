"""Snapshots: the weights and buffers at each minimum, in memory or in a folder."""

import re
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .combination import Member
from .errors import ArgumentError, NonFiniteError, shortened, whole_number
from .shards import gathered, local
from .storage import tensorfile
from .storage.folder import Folder
from .storage.memory import Memory
from .storage.store import Entry as Entry
from .storage.store import Store
from .storage.tensorfile import Spec, in_file_order
from .weights import check_real


class Snapshots:
    """The snapshots of one run, keyed by completed step.

    Without a path they are stored in memory, on the CPU. With a path they are stored in that folder, and
    reading them needs neither the training process nor a lock. With a `dtype` (for example
    `torch.bfloat16`), wider floating-point tensors are converted to it. A tensor with the same content as
    in the previous snapshot, such as a frozen tensor, is stored once.

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
        if path is not None and not isinstance(path, (str, PathLike)):
            raise ArgumentError(f"path must be the path of a folder, or None for memory, got {path!r}: pass a string")
        if path is not None and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:[/\\]", fspath(path)):  # C:/ is not a URL
            raise ArgumentError(f"path must be a local folder, got the URL {fspath(path)!r}: choose a local folder")
        self.path = None if path is None else Path(path).absolute()  # a later chdir must not change it
        self.dtype = dtype
        self._store: Store = Memory() if self.path is None else Folder(self.path)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of the committed snapshots, ascending."""
        return tuple(self._store.steps)

    @property
    def members(self) -> tuple[Member, ...]:
        """The run and the step of each snapshot, as in a `Combination`."""
        run = self._store.run
        return tuple((run, step) for step in self._store.steps)

    @property
    def identity(self) -> dict[str, Any]:
        """Identifies this store and each of its snapshots; a checkpoint contains it."""
        return {"run": self._store.run, "snapshots": self._store.steps}

    def load(self, step: int) -> dict[str, Tensor]:
        """The tensors of one snapshot, by name, as copies on the CPU; tied tensors share memory."""
        found = self.entries(step)
        tensors = {entry: entry.read().clone() for entry in set(found.values())}
        return {name: tensors[entry] for name, entry in found.items()}

    def entries(self, step: int) -> Mapping[str, Entry]:
        """The stored tensors of one snapshot by name, to be read one at a time."""
        try:
            return self._store.entries(step)
        except KeyError:
            raise ArgumentError(f"step must be one of {self.steps}, got {step!r}") from None

    def open_to_write(self, resume: bool = False) -> None:
        """Become the only writer; a store that already holds snapshots is accepted only with `resume`."""
        self._store.open_to_write(resume)

    def close(self) -> None:
        """Release the store to other writers; reading remains possible."""
        self._store.close()

    def reserve(self, step: int) -> str:
        """The name that the snapshot of a step will have if it is committed next; outputs are written first."""
        return self._store.reserve(step)

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Reject tensors that can never be committed; each rank checks only its own part of a sharded tensor."""
        check_real(tensors)
        bad = {}
        for name, tensor in tensors.items():
            dtype, part = self._stored_dtype(tensor), local(tensor).detach()
            if self.path is not None:
                tensorfile.check(name, dtype)
            if not _finite(part.to(dtype)):
                bad[name] = _finite(part)
        self._reject_nonfinite(bad, step=0)

    def commit(self, step: int, tensors: Mapping[str, Tensor], *, partial: bool = False, write: bool = True) -> None:
        """Store a snapshot completely or not at all; if `partial`, it holds only some of a model's tensors.

        Tensors are handled one at a time: each is copied to the CPU, checked, compared and stored before the next.
        If some are sharded (DTensors), all ranks call this with the same tensors, and only one of them with `write`:
        they gather each tensor together. A writer that fails gathers the remaining tensors before it raises its error.
        """
        step = whole_number("step", step, 1)
        first_names: dict[tuple[object, ...], str] = {}
        firsts = {name: first_names.setdefault(_place(tensor), name) for name, tensor in tensors.items()}
        tied = {name: first for name, first in firsts.items() if first != name}
        specs = {name: Spec(self._stored_dtype(tensor), tuple(tensor.shape)) for name, tensor in tensors.items()}
        specs = in_file_order(specs)

        def visit(name: str) -> tuple[str, Tensor]:
            return name, gathered(tensors[name])

        visits = map(visit, [name for name in specs if name not in tied])  # unlike a generator, it survives an error
        try:
            if write:
                checked = self._checked(step, visits, self._last_before(step))
                self._store.append(step, specs, checked, tied, partial)
        finally:
            for _ in visits:  # the other ranks wait for each
                pass

    def rewind(self, step: int) -> None:
        """Go back to `step`: later snapshots are no longer members; the next commit removes their files."""
        self._store.rewind(step)

    def __repr__(self) -> str:
        return f"Snapshots({'' if self.path is None else repr(str(self.path))})"

    def _last_before(self, step: int) -> int:
        """The last committed step, 0 if there is none; `step` must be greater."""
        last = self.steps[-1] if self.steps else 0
        if step <= last:
            raise ArgumentError(
                f"step must be greater than {last}, the last committed step, got {step}: call rewind() first"
            )
        return last

    def _checked(
        self, step: int, visits: Iterable[tuple[str, Tensor]], last: int
    ) -> Iterator[tuple[str, Tensor | Entry]]:
        """The tensors one at a time: a tensor to store, or the entry of the last snapshot that already holds it."""
        before = self._store.entries(last) if last else {}
        bad = {}  # the tensors that are not finite -> whether they are before they are converted
        for name, live in visits:
            tensor = live.resolve_conj().resolve_neg()
            # a copy, so that what is checked is what is written even if another thread changes the weights
            tensor = tensor.to("cpu", self._stored_dtype(live), copy=True, memory_format=torch.contiguous_format)
            if not _finite(tensor):
                bad[name] = tensor.dtype != live.dtype and _finite(live)
            del live  # a gathered tensor is not kept while the next is gathered
            if not bad:  # otherwise only the names of the other bad tensors are needed
                yield name, before[name] if name in before and before[name].holds(tensor) else tensor
            del tensor
        self._reject_nonfinite(bad, step)

    def _reject_nonfinite(self, bad: Mapping[str, bool], step: int) -> None:
        if diverged := [name for name, was_finite in bad.items() if not was_finite]:
            raise NonFiniteError(
                f"weights must be finite to be stored, got NaN or infinity at step {step} in {shortened(diverged, 5)}: "
                "lower the rate or clip the gradient; if a buffer is not finite by design, register it with "
                "persistent=False"
            )
        if bad:
            raise NonFiniteError(
                f"weights must be in the range of {self.dtype}, the dtype of the snapshots, got larger ones at step "
                f"{step} in {shortened([*bad], 5)}: use Snapshots(dtype=torch.bfloat16), or dtype=None"
            )

    def _stored_dtype(self, tensor: Tensor) -> torch.dtype:
        if self.dtype is None or not tensor.is_floating_point() or tensor.itemsize <= self.dtype.itemsize:
            return tensor.dtype
        return self.dtype


def _place(tensor: Tensor) -> tuple[object, ...]:
    """The place in memory, equal for tied tensors; an empty tensor, or one that wraps others, has none."""
    if tensor.data_ptr() == 0:
        return (id(tensor),)
    return (
        tensor.device,
        tensor.data_ptr(),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _finite(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.dtype.itemsize == 1:  # 8-bit floats cannot be summed
        tensor = tensor.float()
    # a sum is one pass without a mask; it may overflow although every element is finite, so check again
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
