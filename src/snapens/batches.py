"""Convert batches to the arguments of a model, and its outputs to scores."""

from collections.abc import Callable, Mapping, MutableMapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from .activation import ONE_LOGIT
from .errors import ArgumentError


def first(batch: Any) -> Any:
    """The input in a batch: the first element of a tuple, named tuple or list, else the batch itself."""
    return batch[0] if type(batch) is list or _is_tuple(batch) else batch


def second(batch: Any) -> Any:
    """The labels in a batch: the second element of a tuple, named tuple or list, or the entry "labels" of a mapping."""
    if (type(batch) is list or _is_tuple(batch)) and len(batch) > 1:
        return batch[1]
    if isinstance(batch, Mapping) and "labels" in batch:
        return batch["labels"]
    raise ArgumentError(f"batch must contain labels, got {_kind(batch)}: pass targets=, a function of a batch")


def rows(value: Any, index: Tensor, examples: int) -> Any:
    """The rows at `index` of every tensor with one row per example, in nested tuples, lists and mappings."""

    def has_rows(item: Any) -> bool:
        return isinstance(item, Tensor) and item.ndim > 0 and len(item) == examples

    return _nested(value, has_rows, lambda tensor: tensor[index.to(tensor.device)])


def arguments(inputs: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for a model, on the device: a mapping gives keyword arguments, a plain or named tuple several."""
    inputs = _nested(inputs, _moves_itself, lambda item: item.to(device))
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if _is_tuple(inputs) else (inputs,)), {}


def separate(given: Any) -> Any:
    """A copy for one member, because a model may change tensors in place, or the entries of a dictionary or object.

    Of an object that has no `clone` method, and is neither a mapping nor a tuple, what it contains is not copied.
    """

    def is_object(item: Any) -> bool:
        plain = type(item) in (dict, list, tuple)  # the first case also lets torch.compile() trace this
        return isinstance(item, Tensor) or (not plain and (isinstance(item, Mapping) or _moves_itself(item)))

    def of_object(item: Any) -> Any:
        if isinstance(item, Tensor) or hasattr(item, "clone"):  # up to torch 2.9, torch.compile() finds no `clone`
            return item.clone()
        if isinstance(item, tuple):  # a PackedSequence
            return type(item)(*map(separate, item))
        found = copy(item)
        if isinstance(found, MutableMapping):
            found.update({key: separate(value) for key, value in found.items()})
        return found

    return _nested(given, is_object, of_object)


def scores(output: Any) -> Any:
    """The tensor in the output of a model, or a dictionary of its tensors, without single numbers such as a loss.

    If an output has `logits`, as a key or an attribute, only these are used.
    """
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if isinstance(logits, Tensor):
        return logits
    of_tensors = isinstance(output, Mapping) and all(isinstance(value, Tensor) for value in output.values())
    if of_tensors and (found := {key: value for key, value in output.items() if value.ndim}):
        return found
    raise ArgumentError(
        f"model must return a tensor, a mapping of tensors or something with .logits, got {_kind(output)}: "
        "load the snapshots into a subclass of the model whose forward() returns the scores"
    )


def class_scores(output: Any, dim: int = -1) -> Tensor:
    """The scores (examples, classes) in the output of a classifier, whose classes are along `dim`."""
    found = scores(output)
    if not isinstance(found, Tensor) or found.ndim != 2 or dim not in (-1, 1):
        if isinstance(found, Tensor):
            shown, remedy = f"shape {tuple(found.shape)} and dim={dim}", f"; {ONE_LOGIT}" if found.ndim == 1 else ""
        else:
            shown, remedy = f"a mapping of {', '.join(map(repr, found))}", "; or name the scores 'logits' in its output"
        raise ArgumentError(
            f"model must return scores (batch, classes), got {shown}: "
            f"use Ensemble.predict, or evaluate ensemble.members{remedy}"
        )
    return found


def each(function: Callable[..., Any], *outputs: Any) -> Any:
    """Apply a function to tensors, or to each key of dictionaries of tensors."""
    if isinstance(outputs[0], Tensor):
        return function(*outputs)
    return {key: function(*(output[key] for output in outputs)) for key in outputs[0]}


def joined(outputs: list[Any]) -> Any:
    """The outputs of all batches, concatenated."""
    if isinstance(outputs[0], Tensor) and not outputs[0].ndim:
        raise ArgumentError("model must return one row per example, got one number per batch: use ensemble(x) instead")
    return each(lambda *batches: torch.cat(batches), *outputs)


def _nested(value: Any, applies: Callable[[Any], bool], function: Callable[[Any], Any]) -> Any:
    """Replace the values for which `applies` is true, in nested tuples, lists and mappings."""
    if applies(value):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _nested(item, applies, function) for key, item in value.items()}
    if type(value) is list or _is_tuple(value):
        found = [_nested(item, applies, function) for item in value]
        return value._make(found) if hasattr(value, "_make") else type(value)(found)
    return value


def _moves_itself(value: Any) -> bool:
    return callable(getattr(value, "to", None))


def _is_tuple(value: Any) -> bool:
    """Whether a value is a plain or a named tuple; a `PackedSequence`, which has a `to` method, is a single value."""
    return type(value) is tuple or (isinstance(value, tuple) and hasattr(value, "_fields") and not _moves_itself(value))


def _kind(value: object) -> str:
    return type(value).__name__
