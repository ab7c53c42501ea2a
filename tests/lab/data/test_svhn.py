import formats
import numpy as np
import pytest
import scipy.io

from snapens.errors import DataError, MissingDataError
from snapens.lab.data import load

trusted = formats.trusted
TRAIN, EXTRA, TEST = formats.noise(30, seed=1), formats.noise(20, seed=2), formats.noise(7, seed=3)


@pytest.fixture
def root(tmp_path, trusted):
    formats.svhn(tmp_path / "train_32x32.mat", TRAIN, np.arange(30) % 10)
    formats.svhn(tmp_path / "extra_32x32.mat", EXTRA, np.arange(20) * 3 % 10)
    formats.svhn(tmp_path / "test_32x32.mat", TEST, np.arange(7))
    for path in tmp_path.iterdir():
        trusted(path)
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
    (tmp_path / "all/svhn").mkdir(parents=True)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (root / name).rename(tmp_path / "all/svhn" / name)
    assert len(load("svhn", tmp_path / "all").test) == 7
    with pytest.raises(MissingDataError, match=r"holds extra_32x32.mat, got .*housenumbers/extra_32x32.mat"):
        load("svhn-extra", tmp_path / "all")


@pytest.mark.parametrize(
    "change", [lambda content: content[:5000], lambda content: content + b"!", lambda content: b""]
)
def test_a_file_with_another_content_than_the_published_one_is_not_opened(root, monkeypatch, change):
    path = root / "train_32x32.mat"
    path.write_bytes(change(path.read_bytes()))
    monkeypatch.setattr(scipy.io, "loadmat", None)  # it crashes the process for some contents
    with pytest.raises(
        DataError, match=r"train_32x32.mat must have the MD5 \w+, got \w+: remove it and download it ag"
    ):
        load("svhn", root)
