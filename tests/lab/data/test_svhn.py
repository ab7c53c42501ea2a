import formats
import numpy as np
import pytest
from scipy.io import savemat

from snapens.errors import DataError, MissingDataError
from snapens.lab.data import load

TRAIN, EXTRA, TEST = formats.noise(30, seed=1), formats.noise(20, seed=2), formats.noise(7, seed=3)


@pytest.fixture
def root(tmp_path):
    formats.svhn(tmp_path / "train_32x32.mat", TRAIN, np.arange(30) % 10)
    formats.svhn(tmp_path / "extra_32x32.mat", EXTRA, np.arange(20) * 3 % 10)
    formats.svhn(tmp_path / "test_32x32.mat", TEST, np.arange(7))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "pixels", "labels"),
    [
        ("svhn", TRAIN, np.arange(30) % 10),
        ("svhn-extra", np.concatenate([TRAIN, EXTRA]), np.concatenate([np.arange(30) % 10, np.arange(20) * 3 % 10])),
    ],
)
def test_every_training_image_has_its_digit(root, name, pixels, labels):
    data = load(name, root)
    np.testing.assert_array_equal(data.train.pixels, pixels)
    np.testing.assert_array_equal(data.train.labels, labels)
    np.testing.assert_array_equal(data.test.pixels, TEST)
    np.testing.assert_array_equal(data.test.labels, np.arange(7))
    assert data.classes == tuple("0123456789")
    assert data.normalisation() == ((0, 0, 0), (255, 255, 255))
    assert data.augmentation == "none"


def test_the_files_may_be_in_a_folder_of_their_own(root, tmp_path):
    formats.svhn(tmp_path / "all/svhn/train_32x32.mat", TRAIN, np.arange(30) % 10)
    formats.svhn(tmp_path / "all/svhn/test_32x32.mat", TEST, np.arange(7))
    assert len(load("svhn", tmp_path / "all").test) == 7
    with pytest.raises(MissingDataError, match=r"holds extra_32x32.mat, got .*housenumbers/extra_32x32.mat"):
        load("svhn-extra", tmp_path / "all")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": TEST.transpose(1, 2, 3, 0)}, r"and y \(0,\)"),
        ({"X": TEST, "y": np.ones((7, 1))}, r"got X \(7, 32, 32, 3\) of uint8"),
        ({"X": TEST.transpose(1, 2, 3, 0) / 255, "y": np.ones((7, 1))}, "of float64"),
        ({"X": TEST.transpose(1, 2, 3, 0), "y": np.ones((6, 1))}, r"and y \(6, 1\)"),
        ({"X": TEST.transpose(1, 2, 3, 0), "y": np.zeros((7, 1))}, "labels from 1 to 10, got 0"),
        ({"X": TEST.transpose(1, 2, 3, 0), "y": np.full((7, 1), 1.5)}, "labels from 1 to 10, got 1.5"),
    ],
)
def test_other_content_is_rejected(root, content, message):
    savemat(root / "test_32x32.mat", content)
    with pytest.raises(DataError, match=message):
        load("svhn", root)


def test_an_incomplete_file_is_rejected(root):
    path = root / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"train_32x32.mat must be a MATLAB file, got"):
        load("svhn", root)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"train_32x32.mat must be a MATLAB file, got"):
        load("svhn", root)
