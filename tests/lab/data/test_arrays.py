import formats
import numpy as np
import pytest

from snapens.errors import ArgumentError, DataError, MissingDataError, SnapensError
from snapens.lab.data import load
from snapens.lab.data.arrays import from_arrays

TRAIN, TEST = formats.noise(20, size=8, seed=1), formats.noise(6, size=8, seed=2)
LABELS, TEST_LABELS = np.arange(20) % 2, np.arange(6) % 2


def saved(tmp_path, **content):
    np.savez(tmp_path / "mine.npz", **content)
    return tmp_path / "mine.npz"


def test_the_arrays_of_a_file_are_those_that_were_saved(tmp_path):
    names = np.array(["cat", "dog"])
    path = saved(tmp_path, x_train=TRAIN, y_train=LABELS, x_test=TEST, y_test=TEST_LABELS, classes=names)
    data = load("arrays", path)
    np.testing.assert_array_equal(data.train.pixels, TRAIN)
    np.testing.assert_array_equal(data.test.pixels, TEST)
    np.testing.assert_array_equal(data.train.labels, LABELS)
    np.testing.assert_array_equal(data.test.labels, TEST_LABELS)
    assert data.classes == ("cat", "dog")
    assert (data.name, data.size, data.channels, data.augmentation) == ("mine", 8, 3, "none")


def test_grey_images_have_one_channel_and_classes_are_named_by_their_numbers():
    data = from_arrays(TRAIN[..., 0], LABELS.tolist(), TEST[..., 0], TEST_LABELS.astype(np.uint8))
    np.testing.assert_array_equal(data.train.pixels, TRAIN[..., :1])
    assert data.channels == 1
    assert data.classes == ("0", "1")


def test_without_a_test_set_a_tenth_of_each_class_becomes_one():
    data = from_arrays(TRAIN, np.arange(20) // 10, augmentation="crop-mirror")
    assert np.bincount(data.test.labels).tolist() == [1, 1]
    assert np.bincount(data.train.labels).tolist() == [9, 9]
    every = [*data.train.pixels, *data.test.pixels]
    assert {pixels.tobytes() for pixels in every} == {pixels.tobytes() for pixels in TRAIN}
    again = from_arrays(TRAIN, np.arange(20) // 10)
    np.testing.assert_array_equal(again.test.pixels, data.test.pixels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((TRAIN / 255, LABELS), "x_train must be uint8, from 0 to 255, got float64: convert values from 0 to 1"),
        ((TRAIN.transpose(0, 3, 1, 2), LABELS), r"x_train must be .*, got \(20, 3, 8, 8\): put the channels last"),
        ((TRAIN[:, :4], LABELS), "make the images square"),
        ((TRAIN[0, :, :, 0], LABELS), r"got \(8, 8\)"),
        ((TRAIN[:0], LABELS[:0]), r"got \(0, 8, 8, 3\)"),
        ((TRAIN, LABELS[:-1]), r"y_train must be 20 integers, one per example, got int64 of shape \(19,\)"),
        ((TRAIN, LABELS[:, None]), r"of shape \(20, 1\)"),
        ((TRAIN, LABELS * 1.0), "got float64"),
        ((TRAIN, LABELS > 0), "got bool"),
        ((TRAIN, LABELS + 1), "y_train must number the classes from 0 without gaps, got 2 labels from 1 to 2"),
        ((TRAIN, LABELS - 1), "from -1 to 0"),
        ((TRAIN, LABELS * 10**12), "from 0 to 1000000000000"),
        ((TRAIN, LABELS, None, None, ["one"]), "at least 2 classes"),
        ((TRAIN, LABELS * 2, None, None, ["a", "b"]), "labels must be between 0 and 1"),
        ((TRAIN, LABELS * 0), "at least 2 classes"),
        ((TRAIN, LABELS, TEST), "x_test and y_test must be passed together"),
        ((TRAIN, LABELS, None, TEST_LABELS), "x_test and y_test must be passed together"),
        ((TRAIN, LABELS, TEST[..., :1], TEST_LABELS), r"of the shape of x_train, \(8, 8, 3\), got \(8, 8, 1\)"),
        ((TRAIN, LABELS, TEST, TEST_LABELS + 5), "test labels must be between 0 and 1, got 5 to 6"),
        ((TRAIN[:2], LABELS[:2]), "a class must have at least 2 images to split off a test set"),
    ],
)
def test_arrays_that_break_a_rule_are_rejected(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        from_arrays(*arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x_train": TRAIN}, r"must hold x_train and y_train and may hold .*, got \['x_train'\]"),
        ({"x_train": TRAIN, "y_train": LABELS, "y_tset": LABELS}, "'y_tset'"),
        ({"x_train": TRAIN, "y_train": LABELS, "classes": np.arange(2)}, "classes must be one string per class"),
        ({"x_train": TRAIN, "y_train": LABELS, "classes": np.array([b"a", None])}, "without pickled objects"),
        ({"x_train": TRAIN, "y_train": LABELS[1:]}, "y_train must be 20 integers"),
    ],
)
def test_a_file_that_breaks_a_rule_is_rejected(tmp_path, content, message):
    with pytest.raises(SnapensError, match=message):
        load("arrays", saved(tmp_path, **content))


@pytest.mark.parametrize("content", [b"", b"PK\3\4 and no more", b"hello", None])
def test_a_file_that_is_not_an_npz_is_rejected(tmp_path, content):
    path = tmp_path / "mine.npz"
    if content is None:
        np.save(path.with_suffix(".npy"), TRAIN)
        path = path.with_suffix(".npy")
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"must be an .npz file without pickled objects"):
        load("arrays", path)


def test_a_missing_file_is_an_error_that_names_the_path(tmp_path):
    with pytest.raises(MissingDataError, match=r"data must be an .npz file .*nothing.npz: check the path"):
        load("arrays", tmp_path / "nothing.npz")
