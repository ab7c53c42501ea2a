"""Replicas: copies of a model that hold the members of an ensemble."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from .batches import separate
from .combination import Member
from .errors import ArgumentError, MismatchError, shortened
from .shards import is_sharded
from .snapshots import Entry, Snapshots
from .storage.memory import Held
from .weights import check_real, reject_extra_state, tensors, unwrap


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
        for replica, held in zip(self, self._held, strict=True):
            bank |= {held[name]: tensor for name, tensor in tensors(replica).items()}
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


@torch.inference_mode(False)
def copied(model: nn.Module, device: torch.device | str | None = None, strict: bool = True) -> nn.Module:
    """A copy of the unwrapped model in evaluation mode, which uses none of the model's tensors."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an instance of the architecture, got {model!r}: pass Net(), not Net")
    if device is not None:
        check_device(device)
    if strict:
        reject_extra_state(model)
    live = tensors(model)
    check_real(live)
    if parts := [name for name, tensor in live.items() if is_sharded(tensor)]:
        raise ArgumentError(
            f"model must not be sharded to be copied for the members, got the shard {parts[0]!r}: "
            "pass a plain instance, such as ensembler.ensemble(model=Net())"
        )
    try:
        copy = deepcopy(unwrap(model))
    except Exception as error:
        raise ArgumentError(
            f"model must support copy.deepcopy, got {error}: pass another instance, or replace "
            "torch.nn.utils.weight_norm with torch.nn.utils.parametrizations.weight_norm"
        ) from error
    if shared := list(_live_functions(unwrap(model), copy)):
        raise ArgumentError(
            f"model must have only functions that a copy can use with its own weights, got {shared[0]!r}, which was "
            "compiled or replaced in place, or refers to the model: use model.compile(), use methods instead of "
            "functions inside __init__, or pass another instance of the architecture"
        )
    return copy.to(device).eval()


def check_device(device: torch.device | str) -> None:
    """Reject a device that torch does not know, or cannot use on this machine."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # torch raises the first if it was built without the device
        reason = str(error).strip().partition("\n")[0]
        raise ArgumentError(
            f"device must be available, got {device}, but torch cannot use it ({reason}): use device='cpu', or install "
            "torch and a driver for this device"
        ) from error


def _live_functions(model: nn.Module, copy: nn.Module) -> Iterator[str]:
    """The functions in a copy that call the model: `deepcopy` copies bound methods, but no other functions."""
    live = {id(module) for module in model.modules()}
    for (path, one), other in zip(model.named_modules(), copy.modules(), strict=False):
        of_copy = dict(_attributes_and_hooks(other))
        for place, function in _attributes_and_hooks(one):
            name, _ = place
            if of_copy.get(place) is function and (name == "forward" or any(id(m) in live for m in _owners(function))):
                yield f"{path}.{name}".lstrip(".")


def _attributes_and_hooks(module: nn.Module) -> Iterator[tuple[tuple[str, Any], Any]]:
    """The values in a module by name and, for hooks, their key."""
    for name, value in vars(module).items():
        hooks = value if name.endswith("_hooks") and isinstance(value, dict) else {None: value}
        yield from (((name, key), one) for key, one in hooks.items())


def _owners(function: Any) -> Iterator[Any]:
    """The objects whose method was compiled into a function, or that it refers to in its closure."""
    yield getattr(getattr(function, "_torchdynamo_orig_callable", None), "__self__", None)
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # a variable without a value yet
            yield getattr(cell.cell_contents, "__self__", cell.cell_contents)


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
