"""The tensors of a model that its snapshots store."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from .errors import ArgumentError, shortened
from .ranks import Ranks
from .shards import is_sharded
from .weights import reject_extra_state, tensors

Keep = nn.Module | Callable[[], Mapping[str, Tensor]]
"""The module to store, or a function that returns the tensors to store by their names in the trained model."""


def kept(model: nn.Module, keep: Keep) -> dict[str, Tensor]:
    """The live tensors that a snapshot stores, by their names in the model."""
    if isinstance(keep, nn.Module):
        reject_extra_state(keep)
        return tensors(keep)
    known, found = tensors(model), keep()  # in this order: state_dict() makes FSDP2 shard parameters again
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ArgumentError(f"keep must return a dict from names to tensors, got {type(found).__name__}")
    if wrong := [name for name, value in found.items() if name not in known or known[name].shape != value.shape]:
        raise ArgumentError(
            "keep must return tensors by their names in the model, with the shapes that they have there, got "
            f"{wrong[0]!r}: select them from the named_parameters() of the model without its wrappers"
        )
    firsts: dict[int, Tensor] = {}  # tensors that are tied in the model are stored once, under all of their names
    stored = {name: firsts.setdefault(id(known[name]), value) for name, value in found.items()}
    return stored | {name: firsts[id(live)] for name, live in known.items() if id(live) in firsts}


def reject_wrapper(model: nn.Module, keep: Keep) -> None:
    """Reject a module that only contains the module to store, such as timm's `ModelEmaV2`: its names differ."""
    if isinstance(keep, nn.Module) and type(keep).forward is nn.Module.forward:
        names, found = list(tensors(model)), list(tensors(keep))
        prefix = found[0].removesuffix(names[0]) if found else ""
        if prefix.endswith(".") and found == [prefix + name for name in names]:
            raise ArgumentError(
                f"keep must have the tensors of the model under their names in the model, got {found[0]!r} instead of "
                f"{names[0]!r}: pass the averaged model itself: keep=wrapper.{prefix.removesuffix('.')}"
            )


def kept_by_all(model: nn.Module, keep: Keep, ranks: Ranks) -> dict[str, Tensor]:
    """`kept` on all ranks. They gather sharded tensors one at a time, so the order must be the same on all ranks."""
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
