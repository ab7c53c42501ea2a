"""Labels, and what all data sets do in the same way: hold out examples, describe and identify their parts."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ArgumentError

_DIGEST_EXAMPLES = 1000
_RENUMBER = "np.unique(y, return_inverse=True)[1]"


def checked_labels(argument: str, labels: ArrayLike, examples: int) -> NDArray[np.int64]:
    """Labels as int64, one per example."""
    found = np.asarray(labels)
    if found.dtype.kind not in "iu" or found.shape != (examples,):
        remedy = "" if found.dtype.kind in "iu" else f": number all labels together with {_RENUMBER}"
        raise ArgumentError(
            f"{argument} must be {examples} integers, one per example, got {found.dtype} of shape {found.shape}{remedy}"
        )
    return found.astype(np.int64)


def numbered(labels: NDArray[np.int64]) -> tuple[str, ...]:
    """The numbers of the classes as their names; the numbers must have no gaps."""
    found = np.unique(labels)
    if not np.array_equal(found, np.arange(len(found))):
        raise ArgumentError(
            f"y_train must number the classes from 0 without gaps, got {len(found)} labels from {found[0]} to "
            f"{found[-1]}: renumber them with {_RENUMBER}, or pass classes"
        )
    return tuple(map(str, found))


def require_labels(name: str, classes: Sequence[str], parts: Mapping[str, NDArray[np.int64]]) -> None:
    """Reject a data set of fewer than two classes, or with labels that are not among them."""
    if len(classes) < 2:
        raise ArgumentError(f"data must have at least 2 classes, got {list(classes)} in {name}: add one")
    for part, labels in parts.items():
        if not len(labels) or labels.min() < 0 or labels.max() >= len(classes):
            found = f"{labels.min()} to {labels.max()}" if len(labels) else "none"
            raise ArgumentError(f"{part} labels must be between 0 and {len(classes) - 1}, got {found} in {name}")


def hold_out(data: Any, count: int, seed: int) -> Any:
    """The data set with `count` of its training examples, drawn by `seed`, moved to `held_out`."""
    examples = len(data.train)
    if not 0 <= count < examples:
        raise ArgumentError(f"held_out must be at least 0 and less than the {examples} training examples, got {count}")
    if count == 0:
        return data
    if data.held_out is not None:
        raise ArgumentError(f"held_out must be 0 for a data set with held-out examples of its own, got {count}")
    chosen, others = _drawn(examples, count, seed)
    return replace(data, train=data.train.take(others), held_out=data.train.take(chosen))


def described(data: Any) -> dict[str, Any]:
    """The classes, the preprocessing, and the size and digest of each part of a data set, as JSON."""
    parts = {"train": data.train, "test": data.test} | ({"held_out": data.held_out} if data.held_out else {})
    return {
        "classes": list(data.classes),
        "preprocessing": data.preprocessing.written(),
        "images": {name: {"count": len(part), "sha256": part.digest} for name, part in parts.items()},
    }


def tenth(labels: NDArray[np.int64], seed: int) -> int:
    """A tenth of the training examples, to be held out; 0 if a class would then have no example to train on.

    Examples:
        >>> tenth(np.arange(50) % 2, seed=0)
        5
    """
    count = len(labels) // 10
    _, others = _drawn(len(labels), count, seed)
    return count if len(np.unique(labels[others])) == len(np.unique(labels)) else 0


def _drawn(examples: int, count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices of `count` examples, drawn by `seed`, and those of the others."""
    # the raw output of the generator is the same in every version of NumPy
    order = np.argsort(np.random.Philox(key=[seed, 0x5E1D]).random_raw(examples), kind="stable")
    return np.sort(order[:count]), np.sort(order[count:])


def require_both(x_test: object, y_test: object) -> None:
    """Reject test examples without labels, and labels without examples."""
    if (x_test is None) != (y_test is None):
        raise ArgumentError("x_test and y_test must be passed together, got only one of them: pass both or neither")


def digest(labels: NDArray[np.int64], examples: Iterable[bytes]) -> str:
    """Distinguishes examples from others: a SHA-256 of the labels and of the content of some examples."""
    found = hashlib.sha256(np.ascontiguousarray(labels).tobytes())
    for content in examples:
        found.update(content)
    return found.hexdigest()


def spread(examples: NDArray[Any]) -> Iterator[bytes]:
    """The content of about 1,000 examples, spread over all of an array."""
    yield np.ascontiguousarray(examples[:: max(1, len(examples) // _DIGEST_EXAMPLES)]).tobytes()
