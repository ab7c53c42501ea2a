"""Copies: how a model is copied for the members of an ensemble."""

import dis
import inspect
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from .errors import ArgumentError
from .shards import is_sharded
from .weights import check_real, reject_extra_state, tensors, unwrap

_CALLED_IN_FORWARD = ("_forward_hooks", "_forward_pre_hooks")


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
            f"model must not be sharded, because it is copied for the members, got the shard {parts[0]!r}: "
            "pass a plain instance, such as ensembler.ensemble(model=Net())"
        )
    try:
        copy = deepcopy(unwrap(model))
    except Exception as error:
        raise ArgumentError(
            f"model must support copy.deepcopy, got {error}: pass another instance of the architecture"
        ) from error
    if shared := list(_live_functions(unwrap(model), copy)):
        raise ArgumentError(
            f"model must have only functions that a copy can use with its own weights, got {shared[0]!r}, which "
            "refers to the model, perhaps because it was compiled in place: use model.compile(), use methods instead "
            "of functions inside __init__, or pass another instance of the architecture"
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
    """The functions in a copy that refer to the model: `deepcopy` copies bound methods, but no other functions.

    Functions inside containers, and references that a function reaches only through other objects, are not found.
    """
    live = {id(module) for module in model.modules()}
    for (path, one), other in zip(model.named_modules(), copy.modules(), strict=False):
        of_copy = dict(_attributes_and_hooks(other))
        for place, function in _attributes_and_hooks(one):
            if of_copy.get(place) is function and any(id(found) in live for found in _references(function)):
                yield f"{path}.{place[0]}".lstrip(".")


def _attributes_and_hooks(module: nn.Module) -> Iterator[tuple[tuple[str, Any], Any]]:
    """The values in a module by name and, for hooks, their key."""
    for name, value in vars(module).items():
        hooks = value if name in _CALLED_IN_FORWARD else {None: value}
        yield from (((name, key), one) for key, one in hooks.items())


def _references(function: Any) -> Iterator[Any]:
    """What a function names in its closure or among its globals, and the object of each method among these."""
    while inspect.isroutine(function):
        found = [function]
        if inspect.isfunction(function):
            names = {one.argval for one in dis.get_instructions(function) if one.opname == "LOAD_GLOBAL"}
            found += [function.__globals__[name] for name in names & function.__globals__.keys()]
            for cell in function.__closure__ or ():
                with suppress(ValueError):  # a variable without a value yet
                    found.append(cell.cell_contents)
        yield from (one.__self__ if inspect.ismethod(one) else one for one in found)
        function = getattr(function, "__wrapped__", None)
