"""Loaders: read the batches of a loader for the members of an ensemble."""

from collections.abc import Callable, Iterable, Iterator, Sequence
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

from .combination import Member
from .errors import ArgumentError

Progress = Callable[[int, int | None], object]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Visit = Callable[[Member, float, int, Arguments, Any], Any]
"""Called with a member, its weight, the number of a batch, the arguments of the member, and the batch."""


def read(
    loader: Iterable[Any],
    passes: Sequence[Sequence[tuple[Member, float]]],
    prepared: Callable[[Any], Arguments],
    visit: Visit,
    progress: Progress | None,
) -> None:
    """Read the loader once per pass, and visit the members of the pass for each batch.

    `visit` returns what must be equal in every pass.
    """
    check_batches(loader)
    if len(passes) > 1:
        check_repeatable(loader)
    batches, done, before = count(loader), 0, None
    for members in passes:
        seen = []
        for k, batch in enumerate(loader):
            with torch.no_grad():
                given = prepared(batch)
                seen.append([visit(member, share, k, given, batch) for member, share in members])
            done += 1
            if progress is not None:
                progress(done, None if batches is None else batches * len(passes))
        if not seen:
            raise ArgumentError(
                "loader must yield at least one batch, got none: pass a list or a DataLoader, because a generator can "
                "be read only once"
            )
        if before not in (None, seen):
            raise ArgumentError(
                "loader must yield the same batches for every member, got another number or other shapes of batches in "
                "a later pass: use a list"
            )
        before = seen


def check_batches(loader: Iterable[Any]) -> None:
    """Reject a data set or a tensor, which would be read as batches of one example each."""
    if isinstance(loader, Tensor) or (isinstance(loader, Dataset) and not isinstance(loader, IterableDataset)):
        raise ArgumentError(
            f"loader must be an iterable of batches, got {type(loader).__name__}: "
            "pass a DataLoader or a list, [x] for one batch"
        )


def check_repeatable(loader: Iterable[Any]) -> None:
    """Reject a loader that cannot be repeated in the same order, for streamed members: each reads all batches again."""
    if isinstance(loader, Iterator):
        raise ArgumentError(
            f"loader must be readable once per member if members are streamed, got {type(loader).__name__}: "
            "pass a DataLoader or a list, or use resident=True"
        )
    check_order(loader, "in the same order for every member if members are streamed", "resident=True")


def check_order(loader: Iterable[Any], rule: str, remedy: str) -> None:
    """Reject a DataLoader that shuffles."""
    if isinstance(loader, DataLoader):
        for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
            if isinstance(sampler, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)):
                name = type(sampler).__name__
                raise ArgumentError(
                    f"loader must yield its batches {rule}, got a {name}: use shuffle=False or {remedy}"
                )


def count(loader: Any) -> int | None:
    """The number of batches, or None if the loader has no length."""
    try:
        return len(loader)
    except (NotImplementedError, TypeError):
        return None
