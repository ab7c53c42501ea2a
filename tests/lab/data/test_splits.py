import hashlib
import json
import os
import sys

import formats
import numpy as np
import pytest

from snapens.errors import DataError
from snapens.lab.data import load, splits
from snapens.lab.data.splits import by_name


def chance(name):
    """The definition: the first four bytes of the name's SHA-256 as a number from 0 to 1."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32


def split(root, names):
    """The names that are tested on; their folders are the classes."""
    names = sorted(names)
    labels = np.unique([name.split("/")[0] for name in names], return_inverse=True)[1]
    return {name for name, tested in zip(names, by_name(root, names, labels), strict=True) if tested}


def lowest(names, count):
    return set(sorted(names, key=chance)[:count])


def record(root):
    return json.loads((root / "snapens-split.json").read_text())


ALL = [f"{folder}/{number}.png" for folder in ("cat", "dog") for number in range(1000)]


def test_a_tenth_of_each_class_is_tested_on_that_with_the_lowest_hashes(tmp_path):
    test = split(tmp_path, ALL)
    assert test == lowest(ALL[:1000], 100) | lowest(ALL[1000:], 100)
    assert record(tmp_path) == {"test": sorted(test), "train": sorted({*ALL} - test)}


def test_no_image_changes_sides_when_images_are_added(tmp_path):
    first = [*ALL[:30], *ALL[1000:1300]]
    names, before = first, split(tmp_path, first)
    assert before == lowest(ALL[:30], 3) | lowest(ALL[1000:1300], 30)
    for more in range(0, 2000, 100):
        trained = {*names} - before
        names = sorted({*names, *ALL[: more + 100]})
        test = split(tmp_path, names)
        assert before <= test
        assert not test & trained
        assert test - before == {name for name in {*names} - before - trained if chance(name) < 0.1}
        before = test
    assert split(tmp_path, ALL) == before


def test_an_image_that_was_removed_returns_to_its_side(tmp_path):
    test = split(tmp_path, ALL)
    split(tmp_path, ALL[::2])
    assert split(tmp_path, ALL) == test


def test_each_class_has_an_image_on_both_sides(tmp_path):
    few, two = ALL[:4], ALL[1000:1002]
    assert split(tmp_path, few + two) == lowest(few, 1) | lowest(two, 1)


def test_a_class_whose_test_images_were_removed_takes_a_new_one(tmp_path):
    low, *high = sorted(ALL[:1000], key=chance)[-4:]
    others = ALL[1000:]
    assert low in split(tmp_path, [low, *high, *others])
    with pytest.raises(
        DataError,
        match=r"cat must hold images to train on and images to test on, got only images that .*snapens-split.json "
        "assigns to training: add images, or remove that file for a new split",
    ):
        split(tmp_path, [*high, *others])
    new = min(ALL[:500], key=chance)
    assert split(tmp_path, [*high, new, *others]) & {*ALL[:1000]} == {new}


def test_a_class_whose_training_images_were_removed_takes_a_new_one(tmp_path):
    low = sorted(ALL[:1000], key=chance)[:4]  # all would be tested on
    others = ALL[1000:]
    tested = split(tmp_path, [*low[:3], *others]) & {*low}
    assert tested == {low[0]}
    assert split(tmp_path, [low[0], low[3], *others]) & {*low} == tested


def test_a_record_of_an_older_version_keeps_what_was_trained_on(tmp_path):
    names = ALL[:100] + ALL[1000:1100]
    test = {"cat/7.png", "dog/9.png"}  # their hashes do not matter
    (tmp_path / "snapens-split.json").write_text(json.dumps({"test": sorted(test)}))
    hens = [f"hen/{number}.png" for number in range(100)]
    found = split(tmp_path, [*names, *hens])
    assert found == test | lowest(hens, 10)
    assert {*record(tmp_path)["train"]} == {*names, *hens} - found
    assert split(tmp_path, [*names, *hens, *ALL]) - found == {name for name in {*ALL} - {*names} if chance(name) < 0.1}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"test": "cat/1.png"}',
        b'{"test": [1], "train": []}',
        b'{"test": ["cat/1.png"], "train": ["cat/1.png"]}',
        b'{"test": [], "test": []}',
        b'{"test": ["\xff"], "train": []}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_record_is_an_error_of_ours_and_stays_as_it_is(tmp_path, content):
    path = tmp_path / "snapens-split.json"
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=r"snapens-split.json must be the split that an earlier run recorded, got .*: restore it, or"
    ):
        split(tmp_path, ALL)
    assert path.read_bytes() == content


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_record_that_is_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "snapens-split.json")
    with pytest.raises(DataError, match=r"snapens-split.json must be a regular file"):
        split(tmp_path, ALL)


def test_a_folder_that_cannot_be_written_to_is_split_the_same_and_one_warning_says_so(tmp_path, monkeypatch, caplog):
    def reject(path, chunks):
        raise PermissionError(path)

    monkeypatch.setattr(splits, "publish", reject)
    assert split(tmp_path, ALL) == lowest(ALL[:1000], 100) | lowest(ALL[1000:], 100)
    assert not list(tmp_path.iterdir())
    assert caplog.text.count("snapens-split.json could not be written") == 1
    assert "a tested image may later be trained on" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="other systems reject such a name")
def test_a_file_name_that_is_not_utf_8_is_recorded(tmp_path):
    for number in range(30):
        formats.png(tmp_path / "cat" / os.fsdecode(b"\xff%d.png" % number), formats.noise(1, size=8)[0])
        formats.png(tmp_path / f"dog/{number}.png", formats.noise(1, size=8)[0])
    data = load("folder", tmp_path)
    assert load("folder", tmp_path).test.names == data.test.names
