import pickle
import shutil

import formats
import numpy as np
import pytest

from snapens.errors import DataError, MissingDataError
from snapens.lab.data import load

trusted = formats.trusted
TRAIN, TEST = formats.noise(20, seed=1), formats.noise(6, seed=2)
WRITERS = {"cifar10": (formats.cifar10, 10), "cifar100": (formats.cifar100, 100)}


def written(root, name, pickled=False):
    write, classes = WRITERS[name]
    labels = np.arange(20) * 7 % classes
    tests = np.arange(6) * 19 % classes
    return write(root, TRAIN, labels, TEST, tests, pickled=pickled), labels, tests


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_pixels_and_labels_are_those_that_were_written(tmp_path, name, pickled):
    folder, labels, tests = written(tmp_path, name, pickled)
    for root in (tmp_path, folder):
        data = load(name, root)
        np.testing.assert_array_equal(data.train.pixels, TRAIN)
        np.testing.assert_array_equal(data.test.pixels, TEST)
        np.testing.assert_array_equal(data.train.labels, labels)
        np.testing.assert_array_equal(data.test.labels, tests)
        assert data.train.pixels.flags.writeable
        assert data.train.pixels.flags.c_contiguous
        assert (data.name, data.size, data.channels, data.augmentation) == (name, 32, 3, "crop-mirror")
        assert len(data.classes) == WRITERS[name][1]


def test_class_names_are_built_in_and_a_file_of_names_overrides_them(tmp_path):
    folder, *_ = written(tmp_path, "cifar10")
    assert load("cifar10", tmp_path).classes[:3] == ("airplane", "automobile", "bird")
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert load("cifar10", tmp_path).classes == tuple("abcdefghij")
    (folder / "batches.meta.txt").write_text("a b")
    with pytest.raises(DataError, match=r"batches.meta.txt must name 10 classes, got 2"):
        load("cifar10", tmp_path)


def test_class_names_of_the_python_version_are_read(tmp_path):
    folder, *_ = written(tmp_path, "cifar100", pickled=True)
    names = [f"class {number}" for number in range(100)]
    (folder / "meta").write_bytes(formats.pickled_by_python_2({"fine_label_names": names}))
    assert load("cifar100", tmp_path).classes == tuple(names)


def test_the_hundred_names_are_in_alphabetical_order(tmp_path):
    written(tmp_path, "cifar100")
    classes = load("cifar100", tmp_path).classes
    assert list(classes) == sorted(set(classes))
    assert (classes[0], classes[-1]) == ("apple", "worm")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "whole number of records of 3074 bytes, got 18443"),
        (lambda path: path.write_bytes(b""), "whole number of records"),
        (lambda path: path.write_bytes(b"\0\x64" + bytes(3072)), "labels between 0 and 99, got 100"),
        (lambda path: path.unlink(), "must hold test.bin, which is missing: unpack cifar-100-binary.tar.gz again"),
    ],
)
def test_a_damaged_binary_file_is_rejected(tmp_path, change, message):
    folder, *_ = written(tmp_path, "cifar100")
    change(folder / "test.bin")
    with pytest.raises(DataError, match=message):
        load("cifar100", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {"data": formats.planes(TEST), "fine_labels": [0] * 5},
        {"data": formats.planes(TEST)[:, 1:], "fine_labels": [0] * 6},
        {"data": formats.planes(TEST)[:0], "fine_labels": []},
        {"data": formats.planes(TEST), "fine_labels": ["0"] * 6},
        {"data": formats.planes(TEST)},
        {"data": [1, 2], "fine_labels": [0, 0]},
    ],
)
def test_a_pickle_of_other_content_is_rejected(tmp_path, content):
    folder, *_ = written(tmp_path, "cifar100", pickled=True)
    (folder / "test").write_bytes(formats.pickled_by_python_2(content))
    with pytest.raises(DataError, match=r"must hold \(images, 3072\) uint8 'data' and as many 'fine_labels'"):
        load("cifar100", tmp_path)


@pytest.mark.parametrize("names", [[b"\xff"] * 100, [1] * 100, None, ["one"]])
def test_class_names_of_other_content_are_rejected(tmp_path, names):
    folder, *_ = written(tmp_path, "cifar100", pickled=True)
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    with pytest.raises(DataError, match=r"meta must (be a list of class names, got \w+|name 100 classes)"):
        load("cifar100", tmp_path)


def test_class_names_that_are_not_text_are_rejected(tmp_path):
    folder, *_ = written(tmp_path, "cifar100")
    (folder / "fine_label_names.txt").write_bytes(b"\xff\n" * 100)
    with pytest.raises(DataError, match=r"fine_label_names.txt must be a list of class names, got UnicodeDecodeError"):
        load("cifar100", tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    folder, *_ = written(tmp_path, "cifar100")
    with open(folder / "test.bin", "wb") as file:
        file.truncate(8 << 30)  # a hole: it takes no room
    with pytest.raises(DataError, match=r"test.bin must have at most 536870912 bytes, got 8589934592"):
        load("cifar100", tmp_path)


def test_an_archive_is_checked_and_unpacked_completely(tmp_path, trusted):
    folder, labels, _ = written(tmp_path, "cifar100")
    archive = formats.tar(tmp_path / "cifar-100-binary.tar.gz", of=folder)
    shutil.rmtree(folder)
    with pytest.raises(DataError, match="must have the MD5 03b5dce01913d631647c71ecec9e9cb8, got"):
        load("cifar100", tmp_path)
    trusted(archive)
    np.testing.assert_array_equal(load("cifar100", tmp_path).train.labels, labels)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-100-binary", "cifar-100-binary.tar.gz"]


def test_the_error_for_missing_files_names_the_folder_and_the_source(tmp_path):
    with pytest.raises(MissingDataError) as caught:
        load("cifar10", tmp_path)
    for part in (
        str(tmp_path),
        "cifar-10-batches-bin",
        "cifar-10-python.tar.gz",
        "--data",
        "SNAPENS_DATA",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "--download",
    ):
        assert part in str(caught.value)
