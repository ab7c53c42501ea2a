"""Copies: how a model is copied for the members of an ensemble."""

import dis
import inspect
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import partial
from types import CellType, CodeType
from typing import Any

import torch
from torch import Tensor, nn

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
        copy = deepcopy(unwrap(model), _computed(unwrap(model), live))
    except Exception as error:
        raise ArgumentError(
            f"model must support copy.deepcopy, got {error}: pass another instance of the architecture"
        ) from error
    if shared := list(_live_functions(unwrap(model), copy)):
        raise ArgumentError(
            f"model must have no attribute or hook that refers to the model itself, which a copy would use, got "
            f"{shared[0]!r}, perhaps because it was compiled in place: use model.compile(), use methods instead of "
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


def _computed(model: nn.Module, live: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """Detached copies of the tensors that forward() left in attributes, which `deepcopy` rejects."""
    values = (value for module in model.modules() for value in vars(module).values())
    found = [value for value in values if isinstance(value, Tensor) and value.grad_fn]
    places = {tensor.untyped_storage()._cdata for tensor in live.values()}  # a view of a weight stays rejected
    return {
        id(one): one.detach().clone() for one in found if one.is_sparse or one.untyped_storage()._cdata not in places
    }


def _live_functions(model: nn.Module, copy: nn.Module) -> Iterator[str]:
    """The attributes and hooks of a copy through which it refers to the model: `deepcopy` does not copy functions.

    References that a function reaches only through other objects are not found.
    """
    live = {id(found) for found in (*model.modules(), *model.parameters(), *model.buffers())}
    seen: dict[int, Any] = {}
    for path, module in copy.named_modules():
        for name, value in vars(module).items():
            called = not name.endswith("_hooks") or name in _CALLED_IN_FORWARD
            if called and any(id(found) in live for found in _reached(value, seen)):
                yield f"{path}.{name}".lstrip(".")


def _reached(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """A value and what it names, except what was seen: the items of containers, and what functions bind or enclose."""
    left = [value]
    while left:
        if id(one := left.pop()) in seen:
            continue
        seen[id(one)] = one
        yield one
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, (list, tuple, set)):
            left += one
        elif isinstance(one, weakref.ref):
            left.append(one())
        elif isinstance(one, partial):
            left += [one.func, one.args, one.keywords]
        elif inspect.ismethod(one):
            left += [one.__self__, one.__func__]
        elif inspect.isfunction(one):
            names = set(_global_names(one.__code__))
            left += [one.__globals__[name] for name in names & one.__globals__.keys()]
            left += [one.__defaults__, one.__kwdefaults__, vars(one), *map(_content, one.__closure__ or ())]


def _global_names(code: CodeType) -> Iterator[str]:
    """The globals that a function uses, also in functions inside it."""
    yield from (used.argval for used in dis.get_instructions(code) if used.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _global_names(inner)


def _content(cell: CellType) -> Any:
    with suppress(ValueError):  # a variable without a value yet
        return cell.cell_contents
