"""Kept: the tensors of a model that its snapshots store."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from .errors import ArgumentError, shortened
from .ranks import Ranks
from .shards import is_sharded
from .weights import tensors

Keep = nn.Module | Callable[[], Mapping[str, Tensor]]
"""The module to store, or a function that returns the tensors to store by their names in the trained model."""


def kept(model: nn.Module, keep: Keep) -> dict[str, Tensor]:
    """The live tensors that a snapshot stores, by their names in the model."""
    if isinstance(keep, nn.Module):
        return tensors(keep)
    known, found = tensors(model), keep()  # in this order: for a state_dict, FSDP2 shards its parameters again
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ArgumentError(f"keep must return a dict of names and tensors, got {type(found).__name__}")
    if wrong := [name for name, value in found.items() if name not in known or known[name].shape != value.shape]:
        raise ArgumentError(
            "keep must return tensors by their names in the model, with the shapes that they have there, got "
            f"{wrong[0]!r}: select them from model.named_parameters()"
        )
    firsts: dict[int, Tensor] = {}  # what is tied in the model is stored once
    return {name: firsts.setdefault(id(known[name]), value) for name, value in found.items()}


def kept_by_all(model: nn.Module, keep: Keep, ranks: Ranks) -> dict[str, Tensor]:
    """`kept` on all ranks, which gather the sharded tensors in turn: these must have the same order everywhere."""
    found: dict[str, Tensor] = {}

    def names() -> list[str]:
        found.update(kept(model, keep))
        return [name for name, tensor in found.items() if is_sharded(tensor)]

    first, *others = ranks.together(names)
    if different := [other for other in others if other != first]:
        raise ArgumentError(
            "keep must return the same sharded tensors in the same order on all ranks, "
            f"got {shortened(first)} and {shortened(different[0])}: use the order of model.named_parameters()"
        )
    return found
