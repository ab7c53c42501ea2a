"""Test sets for data without one: a tenth of each class."""

import hashlib
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError, DataError
from ...storage import jsonfile
from ...storage.durable import publish
from ...storage.typed import decoded
from .sources import content

log = logging.getLogger("snapens")

RECORD = "snapens-split.json"
_SIDES = {"test": True, "train": False}
SHARE = 0.1
"""The part of each class that becomes the test set."""


def stratified(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices to train on and to test on; a class with two or more images has at least one to test on.

    Examples:
        >>> train, test = stratified(np.array([0] * 20 + [1] * 10))
        >>> len(train), len(test)
        (27, 3)
    """
    # the raw output of the generator is the same in every version of NumPy
    draws = np.random.Philox(key=[0, 0x7E57]).random_raw(len(labels))
    chosen = []
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        if len(of_class) > 1:
            chosen.append(_lowest(of_class, draws))
    test = np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)
    if not len(test):
        raise ArgumentError("a class must have at least 2 images to split off a test set: add images or a test set")
    return np.setdiff1d(np.arange(len(labels)), test), test


def by_name(root: Path, names: Sequence[str], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which images of a folder are tested on: a mask (images,) that is a tenth of each class, and at least one.

    In a new class, the images whose names have the lowest hashes are tested on. `snapens-split.json` in `root` records
    the assignment of every image that was ever there, {"test": [names], "train": [names]}, and an image in it is never
    reassigned. An image that is added to a class is assigned by its own hash, so the share is a tenth on average.
    Without the file, all classes are new.
    """
    record = root / RECORD
    before = _recorded(record, names)
    hashes = (hashlib.sha256(os.fsencode(name)).digest()[:4] for name in names)
    chances = np.array([int.from_bytes(found) / 2**32 for found in hashes])
    test = np.array([before.get(name, chance < SHARE) for name, chance in zip(names, chances, strict=True)])
    new = np.array([name not in before for name in names])
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        free, folder = of_class[new[of_class]], root / Path(names[of_class[0]]).parent
        if len(of_class) < 2:
            raise DataError(f"{folder} must hold at least 2 images to split off a test set, got 1: add images")
        if len(free) == len(of_class):
            test[of_class] = np.isin(of_class, _lowest(of_class, chances))
        for side, least in ((True, np.argmin), (False, np.argmax)):
            if side in test[of_class]:
                continue
            if not len(free):
                raise DataError(
                    f"{folder} must hold images to train on and images to test on, got only images that {record} "
                    f"assigns to {'training' if side else 'testing'}: add images, or remove that file for a new split"
                )
            test[free[least(chances[free])]] = side
    if new.any():
        _write(record, before | dict(zip(names, test.tolist(), strict=True)))
    return test


def _lowest(of_class: NDArray[np.int64], draws: NDArray[Any]) -> NDArray[np.int64]:
    """The images of a class that become test images: a tenth, and at least one, with the lowest draws."""
    count = max(1, round(SHARE * len(of_class)))
    found: NDArray[np.int64] = of_class[np.argsort(draws[of_class], kind="stable")[:count]]
    return found


def _recorded(path: Path, names: Iterable[str]) -> dict[str, bool]:
    """Whether each image that an earlier call saw is tested on."""
    try:
        found = decoded(dict[str, tuple[str, ...]], jsonfile.loads(content(path)), "split")
        test, train = {*found["test"]}, {*found.get("train", ())}
        if both := test & train:
            raise ValueError(f"{min(both)} is in both parts")
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError) as error:
        raise DataError(
            f"{path} must be the split that an earlier run recorded, got {type(error).__name__}: {error}: "
            "restore it, or remove it for a new split, which may move tested images to the training set"
        ) from error
    if "train" in found:
        return dict.fromkeys(test, True) | dict.fromkeys(train, False)
    # an older version recorded the test set only; the other images of these classes were trained on
    classes = {name.rpartition("/")[0] for name in test}
    before = {name: name in test for name in (*test, *names) if name.rpartition("/")[0] in classes}
    _write(path, before)
    return before


def _write(path: Path, tested: dict[str, bool]) -> None:
    parts = {part: sorted(name for name in tested if tested[name] is side) for part, side in _SIDES.items()}
    try:
        publish(path, [jsonfile.dumps(parts)])
    except OSError as error:
        log.warning(
            "%s could not be written (%s): if images are added or removed, a tested image may later be trained on",
            path,
            error,
        )
