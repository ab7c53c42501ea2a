"""A test set for those who have none: a tenth of every class."""

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError


def stratified(
    labels: NDArray[np.int64], share: float = 0.1, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices to train on and to test on; a class of two images or more has at least one to test on.

    Examples:
        >>> train, test = stratified(np.array([0] * 20 + [1] * 10))
        >>> len(train), len(test)
        (27, 3)
    """
    # raw output of the generator: the same with every NumPy
    draws = np.random.Philox(key=[seed, 0x7E57]).random_raw(len(labels))
    aside = []
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        count = max(1, round(share * len(of_class))) if len(of_class) > 1 else 0
        aside.append(of_class[np.argsort(draws[of_class], kind="stable")[:count]])
    test = np.sort(np.concatenate(aside)) if aside else np.empty(0, np.int64)
    if not len(test):
        raise ArgumentError("a class must have at least 2 images to split off a test set: add images or a test set")
    return np.setdiff1d(np.arange(len(labels)), test), test
