"""Preconditions: what the arguments of a `SnapshotEnsembler` must be."""

from torch import nn
from torch.optim import Optimizer

from .errors import ArgumentError
from .kept import Keep, reject_wrapper
from .schedule import Schedule, check_order
from .weights import reject_fsdp1, tensors

_FUNCTIONS = {
    "keep": "pass a function that returns the tensors to store, or a module",
    "on_restart": "pass fresh_weights(build), noisy_weights(scale), reset_momentum, or a function of the ensembler",
}


def check(
    model: nn.Module, optimizer: Optimizer, schedule: Schedule, keep: Keep | None, on_restart: object, on_nonfinite: str
) -> None:
    """Reject arguments that are of another kind, or that do not belong together."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an instance of Module, got {model!r}: pass the network")
    if not isinstance(schedule, Schedule):
        raise ArgumentError(
            f"schedule must be an instance of Schedule, got {type(schedule).__name__}: pass the model, the optimizer "
            "and CyclicCosine(total_steps, cycles), in this order"
        )
    if not hasattr(optimizer, "param_groups"):
        raise ArgumentError(
            f"optimizer must be one torch.optim.Optimizer, got {type(optimizer).__name__}: pass that of the model"
        )
    for name, function in (("keep", keep), ("on_restart", on_restart)):
        if function is not None and not callable(function):
            raise ArgumentError(f"{name} must be a function, got {function!r}: {_FUNCTIONS[name]}")
    if on_nonfinite not in ("raise", "skip"):
        raise ArgumentError(f"on_nonfinite must be 'raise' or 'skip', got {on_nonfinite!r}")
    reject_fsdp1(model)
    owned = {id(tensor) for tensor in tensors(model).values()}
    if not any(id(parameter) in owned for group in optimizer.param_groups for parameter in group["params"]):
        raise ArgumentError(
            "optimizer must hold parameters of model, got one that holds none: build it from model.parameters()"
        )
    check_order(schedule)
    if keep is not None:
        reject_wrapper(model, keep)
