import os
import shutil

import formats
import numpy as np
import pytest

from snapens.errors import DataError, MissingDataError
from snapens.lab.data import load, tinyimagenet

trusted = formats.trusted
TRAIN, TEST = formats.smooth(6, seed=1), formats.smooth(12, seed=2)
JPEG_LOSS = 3


def close(found, expected):
    return np.abs(found.astype(int) - expected).max() <= JPEG_LOSS


def test_training_and_validation_images_are_those_that_were_written(tmp_path):
    folder = formats.tinyimagenet(tmp_path, TRAIN, TEST)
    by_name = sorted(range(12), key=str)  # val_10 comes before val_2
    for root in (tmp_path, folder):
        data = load("tinyimagenet", root)
        assert close(data.train.pixels, TRAIN)
        assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert close(data.test.pixels, TEST[by_name])
        assert data.test.labels.tolist() == [number % 2 for number in by_name]
        assert data.classes == ("bullfrog", "goldfish")
        assert (data.train.name(3), data.test.name(2)) == ("train/n01/images/n01_0.JPEG", "val/images/val_10.JPEG")
        assert (data.size, data.channels, data.augmentation) == (64, 3, "crop-mirror-rgb")


def test_a_class_without_training_images_is_rejected(tmp_path):
    folder = formats.tinyimagenet(tmp_path, TRAIN, TEST)
    for image in (folder / "train/n01/images").iterdir():
        image.unlink()
    with pytest.raises(DataError, match=r"train must have images of each class in wnids.txt, got none of n01: unpack"):
        load("tinyimagenet", tmp_path)


def test_all_images_that_are_missing_are_listed(tmp_path):
    folder = formats.tinyimagenet(tmp_path, TRAIN, TEST)
    for number in (2, 3):
        (folder / f"val/images/val_{number}.JPEG").unlink()
    with pytest.raises(DataError, match=r"got 2 that cannot be used: replace.*\n.*val_2.JPEG: .*\n.*val_3.JPEG: "):
        load("tinyimagenet", tmp_path)


def test_a_grey_image_has_three_equal_channels(tmp_path):
    formats.tinyimagenet(tmp_path, TRAIN, TEST, gray=(1,))
    pixels = load("tinyimagenet", tmp_path).train.pixels.astype(int)
    luma = TRAIN[1, 0, 0] @ [0.299, 0.587, 0.114]  # ITU-R 601, as in JPEG
    assert np.abs(pixels[1] - luma).max() <= JPEG_LOSS
    assert close(pixels[2], TRAIN[2])


def test_images_are_decoded_once(tmp_path, monkeypatch):
    formats.tinyimagenet(tmp_path, TRAIN, TEST)
    first = load("tinyimagenet", tmp_path)
    monkeypatch.setattr(tinyimagenet, "decoded", None)
    again = load("tinyimagenet", tmp_path)
    np.testing.assert_array_equal(again.train.pixels, first.train.pixels)
    np.testing.assert_array_equal(again.test.pixels, first.test.pixels)
    assert again.train.pixels.flags.writeable  # in memory only: the file does not change


def test_images_are_decoded_again_after_a_new_image_or_with_an_incomplete_cache(tmp_path):
    folder = formats.tinyimagenet(tmp_path, TRAIN, TEST)
    load("tinyimagenet", tmp_path)
    formats.jpeg(folder / "train/n01/images/n01_9.JPEG", TEST[0])
    data = load("tinyimagenet", tmp_path)
    assert close(data.train.pixels[6], TEST[0])
    for cache in tmp_path.glob("*.npy"):
        cache.write_bytes(cache.read_bytes()[:-100])
    np.testing.assert_array_equal(load("tinyimagenet", tmp_path).train.pixels, data.train.pixels)


@pytest.mark.parametrize("keeps_the_time", [False, True])
def test_images_are_decoded_again_after_one_was_replaced_by_another_of_the_same_size(tmp_path, keeps_the_time):
    folder = formats.tinyimagenet(tmp_path, TRAIN, TEST)
    load("tinyimagenet", tmp_path)
    path, (cache,) = folder / "train/n02/images/n02_0.JPEG", tmp_path.glob("*.npy")
    about = path.stat()
    formats.jpeg(path, TEST[0])
    path.write_bytes(path.read_bytes().ljust(about.st_size, b"\0"))
    assert path.stat().st_size == about.st_size
    if keeps_the_time:
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert close(load("tinyimagenet", tmp_path).train.pixels[0], TEST[0])
    assert not cache.exists()
    assert len(list(tmp_path.glob("*.npy"))) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("wnids.txt", b"\xff", "wnids.txt must be a list of classes, got UnicodeDecodeError"),
        ("wnids.txt", b"n01\0", "wnids.txt must be a list of classes, got ValueError"),
        ("words.txt", b"\xff", "words.txt must be text in UTF-8, got UnicodeDecodeError"),
        ("val/val_annotations.txt", b"val_0.JPEG", "val_annotations.txt must be lines of .*, got IndexError"),
        ("val/val_annotations.txt", b"", r"/test_a_damaged\w+: test must have .* at least one image, got 0 images"),
        ("val/val_annotations.txt", b"\0\tn01", r"val/images/.: ValueError"),
    ],
)
def test_a_damaged_text_is_an_error_that_names_its_file(tmp_path, name, content, message):
    folder = formats.tinyimagenet(tmp_path, TRAIN, TEST)
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load("tinyimagenet", tmp_path)


def test_without_permission_to_write_images_are_decoded_each_time(tmp_path, monkeypatch):
    def reject(path, chunks):
        raise PermissionError(path)

    monkeypatch.setattr(tinyimagenet, "publish", reject)
    formats.tinyimagenet(tmp_path, TRAIN, TEST)
    assert close(load("tinyimagenet", tmp_path).train.pixels, TRAIN)
    assert not list(tmp_path.glob("*.npy"))


def test_the_official_archive_is_unpacked(tmp_path, trusted):
    folder = formats.tinyimagenet(tmp_path, TRAIN, TEST)
    archive = formats.zipped(tmp_path / "tiny-imagenet-200.zip", of=folder)
    shutil.rmtree(folder)
    trusted(archive)
    assert close(load("tinyimagenet", tmp_path).train.pixels, TRAIN)


def test_each_defect_of_the_folder_is_an_error_that_names_it(tmp_path):
    with pytest.raises(
        MissingDataError, match=r"tiny-imagenet-200 or tiny-imagenet-200.zip, got .*cs231n.stanford.edu"
    ):
        load("tinyimagenet", tmp_path)
    folder = formats.tinyimagenet(tmp_path, TRAIN, TEST)
    path = folder / "train/n01/images/n01_0.JPEG"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"images must be whole files .*\n  .*train/n01/images/n01_0.JPEG: "):
        load("tinyimagenet", tmp_path)
    formats.jpeg(path, TRAIN[0, :32])
    with pytest.raises(DataError, match=r"n01_0.JPEG: 64 × 32 pixels where 64 × 64 are required"):
        load("tinyimagenet", tmp_path)
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn99\t0\t0\t62\t62\n")
    with pytest.raises(DataError, match=r"val_annotations.txt must name classes of wnids.txt, got also n99: unpack"):
        load("tinyimagenet", tmp_path)
    (folder / "val/val_annotations.txt").unlink()
    with pytest.raises(DataError, match=r"tinyimagenet must be readable in .*val_annotations.txt"):
        load("tinyimagenet", tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "val/val_annotations.txt")
        with pytest.raises(DataError, match=r"val_annotations.txt must be a regular file"):
            load("tinyimagenet", tmp_path)
