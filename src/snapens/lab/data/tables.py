"""Tables: rows of numbers with a label each, from an .npz file or from arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ArgumentError
from ..recipe.batch import Transform
from ..recipe.preprocessing import RowPreprocessing
from .labels import checked_labels, described, digest, hold_out, numbered, require_both, require_labels, spread
from .splits import stratified

TOO_LARGE = 1e30  # its square must not overflow, nor a standardised value in float32

if TYPE_CHECKING:
    import torch

    from .protocol import Placed


@dataclass(frozen=True)
class Rows:
    """`values` is (rows, features), in float64; `labels` is (rows,)."""

    values: NDArray[np.float64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def digest(self) -> str:
        """Distinguishes these rows from others: a SHA-256 of the labels and of rows spread over all of them."""
        return digest(self.labels, spread(self.values))

    def take(self, indices: NDArray[np.int64]) -> "Rows":
        """Some of the rows."""
        return Rows(self.values[indices], self.labels[indices])


@dataclass(frozen=True)
class TableData:
    """A data set of rows. Each feature is standardised by the mean and deviation of the training rows."""

    name: str
    train: Rows
    test: Rows
    classes: tuple[str, ...]
    held_out: Rows | None = None

    def __post_init__(self) -> None:
        require_labels(self.name, self.classes, {"train": self.train.labels, "test": self.test.labels})

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """Empty, because no transform suits every table."""
        return ()

    @property
    def inputs(self) -> dict[str, int]:
        """The number of features."""
        return {"features": self.train.values.shape[1]}

    @cached_property
    def preprocessing(self) -> RowPreprocessing:
        """The mean and the deviation of the training rows; a constant feature becomes 0."""
        values = self.train.values
        constant = values.max(0) == values.min(0)  # rounding may give it a deviation
        mean = np.where(constant, values[0], values.mean(0))
        return RowPreprocessing(tuple(mean.tolist()), tuple(np.where(constant, 1.0, values.std(0)).tolist()))

    def hold_out(self, count: int, seed: int) -> "TableData":
        """Move `count` training rows, drawn by `seed`, to `held_out`, for later choices."""
        return cast("TableData", hold_out(self, count, seed))

    def described(self) -> dict[str, Any]:
        """The classes, the preprocessing, and the size and digest of each part, as JSON for the run folder."""
        return described(self)

    def pixels(self, indices: NDArray[np.int64]) -> None:
        """None: rows are not images."""

    def file_name(self, index: int) -> None:
        """None: a row is not a file."""

    def place(self, device: "torch.device", padding: int | None = None) -> "Placed":
        """The rows on a device."""
        from .placed import PlacedTable

        if padding is not None:
            raise ArgumentError(f"padding must be left out for tables, got {padding}")
        return PlacedTable(self, device)


def from_table(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    *,
    name: str = "table",
) -> TableData:
    """Data of (rows, features) numbers and labels from 0; without a test set, a tenth of every class becomes one.

    Examples:
        >>> data = from_table(np.arange(40.0).reshape(20, 2), [0, 1] * 10)
        >>> len(data.train), len(data.test), data.inputs
        (18, 2, {'features': 2})
    """
    require_both(x_test, y_test)
    train = _rows("train", x_train, y_train)
    names = numbered(train.labels) if classes is None else tuple(map(str, classes))
    if x_test is None or y_test is None:
        rest, aside = stratified(train.labels)
        return TableData(name, train.take(rest), train.take(aside), names)
    test = _rows("test", x_test, y_test)
    if test.values.shape[1] != train.values.shape[1]:
        raise ArgumentError(
            f"x_test must have as many features as x_train, {train.values.shape[1]}, got {test.values.shape[1]}"
        )
    return TableData(name, train, test, names)


def _rows(part: str, values: ArrayLike, labels: ArrayLike) -> Rows:
    found = np.asarray(values)
    if found.ndim != 2 or 0 in found.shape or found.dtype.kind not in "fiub":
        raise ArgumentError(f"x_{part} must be numbers (rows, features), got {found.dtype} of shape {found.shape}")
    found = found.astype(np.float64)
    if len(bad := np.argwhere(~(np.abs(found) < TOO_LARGE))):
        row, feature = bad[0]
        raise ArgumentError(
            f"x_{part} must be numbers below {TOO_LARGE:g}, got {found[row, feature]} in row {row}, feature {feature}"
            ": replace it or drop the row"
        )
    return Rows(found, checked_labels(f"y_{part}", labels, len(found)))
