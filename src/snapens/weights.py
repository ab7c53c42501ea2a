"""The tensors of a module under the names they have without wrappers."""

import sys
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from .errors import ArgumentError


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, DDP, `DataParallel` and `AveragedModel`, which are recognised by type."""
    for inner in layers(module):
        module = inner
    return module


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """The module and the modules that it wraps, outermost first."""
    yield module
    while attribute := _inside(module):
        module = getattr(module, attribute)
        yield module


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Name -> live parameter or buffer of the unwrapped module; names do not mention compiled children."""
    module = unwrap(module)
    state, _ = _state(module)
    for name, child in reversed(list(module.named_modules(remove_duplicate=False))):  # a child before its parent
        if attribute := _inside(child):
            inner = f"{name}.{attribute}."
            state = {key.replace(inner, f"{name}.", 1) if key.startswith(inner) else key: state[key] for key in state}
    return state


def reject_extra_state(module: nn.Module) -> None:
    """Reject a module whose state_dict has more than parameters and buffers: a snapshot would lack the rest."""
    if foreign := _state(unwrap(module))[1]:
        raise ArgumentError(
            f"model must have only parameters and buffers in its state_dict, got {foreign[0]!r}, which extra state or "
            "a hook added: register it as a buffer, or pass keep=, a function that returns the trained tensors only"
        )


def check_real(named: Mapping[str, Tensor]) -> None:
    """Reject tensors without values: on the meta device, or of a lazy module before its first batch."""
    for name, tensor in named.items():
        if is_lazy(tensor):
            raise ArgumentError(
                f"model must have real tensors, got {name!r} of a lazy module: call the model with one batch first"
            )
        if tensor.is_meta:
            raise ArgumentError(f"model must have real tensors, got {name!r} on the meta device: build it on the CPU")
        if tensor.layout != torch.strided or any(
            stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            raise ArgumentError(
                f"model must have dense tensors whose values do not share memory, got {name!r}, which is sparse or "
                "expanded: use to_dense() or contiguous(), or register the buffer with persistent=False"
            )


def set_tensors(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy values, by the names of `tensors`, into the parameters and buffers of a module."""
    with torch.no_grad():
        for name, tensor in tensors(module).items():
            tensor.copy_(values[name])


def reject_fsdp1(module: nn.Module) -> None:
    """Reject a model under FSDP1, which flattens parameters, so that they cannot be gathered one at a time."""
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    if any(isinstance(child, fsdp) for child in module.modules()):
        raise ArgumentError(
            "model must not be wrapped by FullyShardedDataParallel (FSDP1), got one that is: "
            "use torch.distributed.fsdp.fully_shard (FSDP2)"
        )


def _state(module: nn.Module) -> tuple[dict[str, Tensor], list[str]]:
    """The parameters and buffers in the state_dict of a module, and the names of its other entries."""
    state = module.state_dict(keep_vars=True)  # first: it makes FSDP2 replace the parameters by their shards
    live = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    own = {name: value for name, value in state.items() if id(value) in live}
    return own, [name for name in state if name not in own]


def _inside(module: nn.Module) -> str | None:
    """The attribute in which a wrapper keeps its module; None for a module that is not a wrapper."""
    # importing the compiler takes a second; if it was not imported, no module is compiled
    compiled = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    if isinstance(module, compiled):
        return "_orig_mod"
    return "module" if isinstance(module, (DistributedDataParallel, DataParallel, AveragedModel)) else None
