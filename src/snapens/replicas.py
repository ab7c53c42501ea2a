"""Replicas: copies of a model that hold the members of an ensemble."""

from collections.abc import Mapping
from copy import deepcopy
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from .batches import separate
from .combination import Member
from .copies import copied
from .errors import MismatchError, shortened
from .snapshots import Entry, Snapshots
from .storage.memory import Held
from .weights import tensors


class Replicas(nn.ModuleList):
    """One replica per member if they are resident, otherwise one through which members are streamed.

    A member is a set of entries: where each tensor is stored. Equal entries have equal content, so resident replicas
    share tensors, and a streamed replica reads only the tensors that differ. If not `strict`, tensors that a member
    lacks are taken from the model, and all members must lack the same tensors.
    """

    def __init__(self, model: nn.Module, device: torch.device | str | None, resident: bool, strict: bool) -> None:
        super().__init__([copied(model, device, strict).requires_grad_(False)])
        self._resident, self._strict = resident, strict
        self._base: Mapping[str, Entry] | None = None  # the tensors of the model that members lack
        self._entries: dict[Member, Mapping[str, Entry]] = {}  # of each member that was added
        self._slots: dict[Member, int] = {}  # the replica of each resident member
        self._held: list[Mapping[str, Entry]] = [{}]  # the tensors that each replica holds
        self._turn = Turn()

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(iter(tensors(self[0]).values())).device

    def add(self, member: Member, snapshots: Snapshots) -> None:
        """Register a member, without reading its tensors."""
        if member not in self._entries:
            entries = snapshots.entries(member[1])
            if not self._strict:
                entries = {**entries, **self._of_model(entries, member)}
            _check_fit(member[1], entries, tensors(self[0]), self._strict)
            self._entries[member] = entries

    def holding(self, member: Member) -> nn.Module:
        """The replica of a member, after reading the tensors that it does not hold yet."""
        slot, entries = (self._slots.get(member, len(self._slots)) if self._resident else 0), self._entries[member]
        if slot == len(self):
            replica, shared = self._sibling(entries)
            _read(entries, shared, replica)
            self.append(replica)  # complete: it shares tensors that must not be overwritten later
            self._held.append(entries)
        elif self._held[slot] is not entries:
            held, self._held[slot] = self._held[slot], {}
            _read(entries, held, self[slot])
            self._held[slot] = entries
        self._slots[member] = slot
        return self[slot]

    def output(self, member: Member, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The output of a member, for a copy of the arguments, which a model may change.

        Threads take turns with the replica through which members are streamed.
        """
        args, kwargs = separate((args, kwargs))
        if self._resident:
            return self.holding(member)(*args, **kwargs)
        with self._turn:
            return self.holding(member)(*args, **kwargs)

    def _of_model(self, entries: Mapping[str, Entry], member: Member) -> Mapping[str, Entry]:
        """Entries for the tensors of the model that a member lacks; the first replica already holds them."""
        live = tensors(self[0])
        lacking = live.keys() - entries.keys()
        if self._base is None:
            held = {id(tensor): Held(tensor) for tensor in live.values()}  # tied tensors have one entry
            self._base = self._held[0] = {name: held[id(live[name])] for name in lacking}
        if lacking != self._base.keys():
            raise MismatchError(
                f"snapshots must lack the same tensors for strict=False, but that of step {member[1]} differs in "
                f"{shortened(sorted(lacking ^ self._base.keys()))}: combine snapshots that store the same tensors"
            )
        return self._base

    @torch.inference_mode(False)
    def _sibling(self, entries: Mapping[str, Entry]) -> tuple[nn.Module, Mapping[str, Entry]]:
        """Another replica, and what it shares: the tensors of equal content that are already on the device."""
        bank: dict[Entry, Tensor] = {}
        wanted = set(entries.values())
        for replica, held in zip(self, self._held, strict=True):
            if not wanted.isdisjoint(held.values()):
                bank |= {held[name]: tensor for name, tensor in tensors(replica).items()}
                wanted -= bank.keys()
        shared = {name: entry for name, entry in entries.items() if entry in bank}
        newest = tensors(self[0])
        return deepcopy(self[0], {id(newest[name]): bank[entry] for name, entry in shared.items()}), shared


class Turn:
    """A lock that can be copied and pickled: the copy is another lock."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["Turn"], tuple[()]]:
        return Turn, ()


@torch.no_grad()
def _read(entries: Mapping[str, Entry], held: Mapping[str, Entry], replica: nn.Module) -> None:
    """Copy the tensors of a member into a replica, except those that it holds."""
    live = tensors(replica)
    for name, entry in entries.items():
        if held.get(name) != entry:
            live[name].copy_(entry.read())


def misfits(stored: Mapping[str, Entry | Tensor], live: Mapping[str, Tensor]) -> list[str]:
    """How the names and the shapes of stored tensors differ from those of a model."""
    wrong = [f"missing {name}" for name in live.keys() - stored.keys()]
    wrong += [f"extra {name}" for name in stored.keys() - live.keys()]
    shapes = {name: (tuple(stored[name].shape), tuple(live[name].shape)) for name in live.keys() & stored.keys()}
    return wrong + [f"{name} has shape {a}, the model's is {b}" for name, (a, b) in shapes.items() if a != b]


def _check_fit(step: int, entries: Mapping[str, Entry], live: Mapping[str, Tensor], strict: bool) -> None:
    """Require that a snapshot has exactly the tensors of the model, with the same shapes."""
    wrong = misfits(entries, live)
    firsts: dict[int, str] = {}
    for name in sorted(live.keys() & entries.keys()):
        stored, wanted, tied = entries[name], live[name], firsts.setdefault(id(live[name]), name)
        if stored.dtype != wanted.dtype and not (stored.dtype.is_floating_point and wanted.dtype.is_floating_point):
            wrong.append(f"{name} has dtype {stored.dtype}, the model's is {wanted.dtype}")
        elif entries[tied] != stored:
            wrong.append(f"{name} is tied to {tied} in the model only")
    if wrong:
        only_missing = len(wrong) == len(live.keys() - entries.keys())
        raise MismatchError(
            f"model must have the architecture of the snapshot of step {step}, "
            f"got {shortened(sorted(wrong), separator='; ')}: build that architecture"
            f"{'; strict=False takes missing tensors from model' if strict and only_missing else ''}"
        )
