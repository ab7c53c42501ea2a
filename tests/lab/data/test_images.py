import hashlib
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from snapens.errors import ArgumentError
from snapens.lab.data.images import ImageData, Images


def numbered(count=50):
    """Images whose pixels equal their label."""
    labels = np.arange(count)
    pixels = np.broadcast_to(labels.astype(np.uint8)[:, None, None, None], (count, 2, 2, 1)).copy()
    names = tuple(map(str, range(count)))
    return ImageData("numbered", Images(pixels, labels), Images(pixels, labels), names, "none", 2, channels=1)


def test_held_out_images_are_disjoint_from_the_others_and_keep_their_labels():
    data = numbered().hold_out(12, seed=3)
    assert data.held_out is not None
    assert len(data.held_out) == 12
    assert len(data.train) == 38
    assert sorted([*data.held_out.labels, *data.train.labels]) == list(range(50))
    for part in (data.held_out, data.train):
        assert (part.pixels[:, 0, 0, 0] == part.labels).all()
    assert np.array_equal(data.test.labels, np.arange(50))


def test_held_out_images_depend_only_on_the_seed():
    first, again, other = (numbered().hold_out(12, seed).held_out.labels for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    more = numbered().hold_out(20, 3).held_out.labels
    assert set(first) < set(more)


def test_nothing_is_held_out_by_default():
    data = numbered()
    assert data.hold_out(0, seed=3) is data
    assert data.held_out is None


@pytest.mark.parametrize("count", [-1, 50, 51])
def test_some_images_must_remain_to_train_on(count):
    with pytest.raises(
        ArgumentError, match=f"held_out must be at least 0 and less than the 50 training examples, got {count}"
    ):
        numbered().hold_out(count, seed=0)


def test_files_are_held_out_without_being_opened():
    data = tiny.data(mean=(1.0, 2.0, 3.0), deviation=(4.0, 5.0, 6.0), augmentation="none")
    pixels = data.train.pixels
    arrays = data.hold_out(15, seed=1)
    files = replace(data, train=Images(tiny.Files(pixels), data.train.labels)).hold_out(15, seed=1)
    for ours, theirs in ((files.train, arrays.train), (files.held_out, arrays.held_out)):
        assert np.array_equal(ours.labels, theirs.labels)
        assert len(ours.pixels) == len(theirs.pixels)
        assert np.array_equal(ours.pixels.crops(np.array([4, 2, 2]), None), theirs.pixels[[4, 2, 2]])


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_normalised_by_their_rounded_mean_and_their_deviation(channels):
    data = tiny.data(channels=channels)
    mean, deviation = data.normalisation()
    assert mean == tuple(np.round(data.train.pixels.mean((0, 1, 2))))
    assert deviation == pytest.approx(data.train.pixels.astype(float).std((0, 1, 2)), abs=0.005)
    assert all(isinstance(number, float) for number in (*mean, *deviation))


def test_a_given_normalisation_replaces_the_computed_one():
    assert tiny.data(mean=(0.0,) * 3, deviation=(255.0,) * 3).normalisation() == ((0.0,) * 3, (255.0,) * 3)


def test_the_description_says_how_to_prepare_an_image_and_to_name_its_class():
    data = tiny.data(mean=(1.0, 2.0, 3.0), deviation=(4.0, 5.0, 6.0))
    described = data.described()
    assert {part: about["count"] for part, about in described.pop("images").items()} == {"train": 40, "test": 20}
    assert described == {
        "classes": ["circle", "square", "star", "line"],
        "preprocessing": {"kind": "images", "mean": [1.0, 2.0, 3.0], "deviation": [4.0, 5.0, 6.0], "size": 8},
    }


def test_other_images_or_other_labels_have_another_digest():
    data = tiny.data()
    same = Images(data.train.pixels.copy(), data.train.labels.copy())
    assert same.digest == data.train.digest
    assert Images(data.train.pixels[::-1], data.train.labels).digest != data.train.digest
    assert Images(data.train.pixels, data.train.labels[::-1]).digest != data.train.digest


@pytest.mark.parametrize(("count", "every"), [(40, 1), (1999, 1), (2500, 2)])
def test_the_digest_of_arrays_is_that_of_recorded_runs(count, every):
    images = tiny.images(count, seed=2)
    content = images.labels.tobytes() + images.pixels[::every].tobytes()
    assert images.digest == hashlib.sha256(content).hexdigest()


def test_arrays_have_no_file_names():
    data = tiny.data().hold_out(5, seed=0)
    assert [images.name(0) for images in (data.train, data.held_out, data.test)] == [None, None, None]


def test_an_augmentation_that_does_not_suit_the_images_is_rejected():
    with pytest.raises(ArgumentError, match="augmentation must suit images with 1 channels, got 'crop-mirror-rgb'"):
        tiny.data(channels=1, augmentation="crop-mirror-rgb")
    with pytest.raises(ArgumentError, match=r"augmentation must not crop image files .*, got 'imagenet'"):
        tiny.data(augmentation="imagenet")


def test_padding_larger_than_the_images_or_for_photos_is_rejected():
    data, cpu = tiny.data(), torch.device("cpu")
    assert data.place(cpu, 8).crop.padding == 8
    with pytest.raises(ArgumentError, match="padding must be at most the 8 pixels of a side, got 9"):
        data.place(cpu, 9)
    photos = replace(data, train=Images(tiny.Files(data.train.pixels), data.train.labels), augmentation="imagenet")
    with pytest.raises(ArgumentError, match="padding must be left out for photos, which are cropped by boxes, got 4"):
        photos.place(cpu, 4)


def test_held_out_images_of_the_data_set_itself_are_kept():
    data = replace(tiny.data(), held_out=tiny.images(5, 2))
    assert data.hold_out(0, seed=1) is data
    with pytest.raises(ArgumentError, match="held_out must be 0 for a data set with held-out examples"):
        data.hold_out(3, seed=1)


def test_a_channel_that_hardly_varies_is_rejected():
    pixels = np.random.default_rng(0).integers(0, 256, (1000, 8, 8, 4), np.uint8)
    pixels[..., 3] = 255
    pixels[0, 0, 0, 3] = 254
    images = Images(pixels, np.arange(1000) % 4)
    data = replace(tiny.data(channels=3), train=images, channels=4, augmentation="none")
    with pytest.raises(ArgumentError, match="a channel of tiny is constant"):
        data.normalisation()


def test_image_files_need_a_given_normalisation():
    data = tiny.data()
    data = replace(data, train=Images(tiny.Files(data.train.pixels), data.train.labels))
    with pytest.raises(ArgumentError, match="mean and deviation must be given for tiny, because its images are files"):
        data.normalisation()


def test_a_constant_channel_cannot_be_normalised():
    data = tiny.data()
    data.train.pixels[..., 1] = 7
    with pytest.raises(ArgumentError, match="pixels must differ to be normalised, but a channel of tiny is constant"):
        data.normalisation()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("circle",)}, r"data must have at least 2 classes, got \['circle'\] in tiny"),
        ({"classes": ("circle", "star")}, "train labels must be between 0 and 1, got 0 to 3 in tiny"),
        (
            {"test": Images(tiny.images(3, 0).pixels, np.array([0, -1, 2]))},
            "test labels must be between 0 and 3, got -1 to 2 in tiny",
        ),
        (
            {"train": Images(tiny.images(3, 0).pixels, np.array([0, 1]))},
            "train must have one label per image and at least one image, got 3 images and 2 labels in tiny",
        ),
        (
            {"test": Images(tiny.images(0, 0).pixels, np.array([], np.int64))},
            "test must have one label per image and at least one image, got 0 images and 0 labels in tiny",
        ),
    ],
)
def test_data_that_cannot_be_learned_from_is_rejected(change, message):
    with pytest.raises(ArgumentError, match=message):
        replace(tiny.data(), **change)
