"""What goes into a member and what comes out: batches, arguments, outputs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .errors import ArgumentError


def check_order(loader: Iterable[Any]) -> None:
    """Members see the same batches one after the other, so a loader must be repeatable and keep its order."""
    of_examples = isinstance(loader, Dataset) and not isinstance(loader, IterableDataset)
    if of_examples or isinstance(loader, (Iterator, Tensor)):
        raise ArgumentError(
            f"loader must be an iterable of batches to go through once a member, got {_kind(loader)}: "
            "pass a DataLoader or a list, [x] for one batch"
        )
    if isinstance(loader, DataLoader):
        for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
            if isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
                raise ArgumentError(
                    f"loader must keep its order from member to member, got a {_kind(sampler)}: use shuffle=False"
                )


def count(loader: Any) -> int | None:
    """How many batches there are, where that is known."""
    try:
        return len(loader)
    except TypeError:
        return None


def first(batch: Any) -> Any:
    """The input in a batch: the first of a tuple or list, else the batch itself."""
    return batch[0] if type(batch) in (tuple, list) else batch


def arguments(inputs: Any, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How to call a model with inputs on the device: a mapping is keywords, a tuple several arguments."""
    inputs = _moved(inputs, device)
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if type(inputs) is tuple else (inputs,)), {}


def scores(output: Any) -> Any:
    """The tensor in a model's output, or a dictionary of them."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, Mapping) and output and all(isinstance(value, Tensor) for value in output.values()):
        return dict(output)
    raise ArgumentError(
        f"model must return a tensor, a mapping of tensors or something with .logits, got {_kind(output)}: "
        "let its forward return one of these"
    )


def each(function: Callable[..., Any], *outputs: Any) -> Any:
    """Apply a function to tensors, or key by key to dictionaries of them."""
    if isinstance(outputs[0], Tensor):
        return function(*outputs)
    return {key: function(*(output[key] for output in outputs)) for key in outputs[0]}


def joined(outputs: list[Any]) -> Any:
    """The outputs of all batches as one."""
    return each(lambda *batches: torch.cat(batches), *outputs)


def _moved(value: Any, device: torch.device) -> Any:
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_moved(item, device) for item in value)
    return value


def _kind(value: object) -> str:
    return type(value).__name__
