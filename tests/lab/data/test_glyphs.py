import hashlib

import numpy as np
import pytest

from snapens.errors import ArgumentError
from snapens.lab.data import glyphs


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "snapens"


def digest(pixels):
    return hashlib.sha256(pixels.tobytes()).hexdigest()


def test_every_machine_draws_the_same_pixels():
    # if a digest changes, the data set has changed: raise glyphs._EDITION too
    assert digest(glyphs.draw("train", 124)) == "0b500911b408e99da276c12a175e2fe786acdc725057d05067d9a997e1f6999d"
    assert (
        digest(glyphs.draw("test", 124, seed=7)) == "251e1b5116d73908325e25143dd19900fbc14143e3e9d8f804657501fb792590"
    )


def test_images_have_the_form_of_every_data_set():
    data = glyphs.load(train=2100, test=62)
    assert data.train.pixels.shape == (2100, 16, 16, 1)
    assert data.train.pixels.dtype == np.uint8
    assert data.test.labels.tolist() == list(range(62))
    assert len(data.classes) == 62
    assert (data.classes[0], data.classes[10], data.classes[36]) == ("0", "A", "a")
    assert (data.size, data.channels, data.augmentation) == (16, 1, "none")


def test_images_resemble_the_mean_of_their_own_class_most():
    data = glyphs.load(train=62 * 40, test=62 * 20)
    means = np.stack([data.train.pixels[data.train.labels == label].mean(0).ravel() for label in range(62)])
    means = means - means.mean(1, keepdims=True)
    guesses = (data.test.pixels.reshape(-1, 256) @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T).argmax(1)
    assert (guesses == data.test.labels).mean() > 10 / 62


def test_parts_and_seeds_share_no_image():
    drawn = [glyphs.draw("train", 62), glyphs.draw("test", 62), glyphs.draw("train", 62, seed=1)]
    assert len({image.tobytes() for images in drawn for image in images}) == 3 * 62


def test_a_sample_between_four_pixels_is_their_weighted_mean():
    glyph = np.array([[[10, 20], [50, 200]]], np.uint8)
    quarter = np.full((1, 1, 1), 64)
    assert glyphs._sampled(glyph, quarter, 2 * quarter).item() == (0.75 * (10 + 50) + 0.25 * (20 + 200)) // 2


def test_samples_outside_a_glyph_are_black():
    far = np.array([[[-5000, -256, 0, 256, 512, 5000]]])
    assert glyphs._sampled(np.full((1, 2, 2), 9, np.uint8), far, 0 * far).ravel().tolist() == [0, 0, 9, 9, 0, 0]


def test_integers_reach_both_limits_and_not_beyond():
    words = np.array([0, 1 << 63, (1 << 64) - 1], np.uint64)
    assert glyphs._between(-2, 2, words).tolist() == [-2, 0, 2]


def test_the_second_load_reads_the_cache_of_the_first(cache, monkeypatch):
    first = glyphs.load(train=70, test=62)
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setattr(glyphs, "draw", None)
    second = glyphs.load(train=70, test=62)
    assert (second.train.pixels == first.train.pixels).all()
    assert second.train.pixels.flags.writeable


@pytest.mark.parametrize("damage", [lambda old: old[:-1] + b"\x00\x00", lambda old: old[:40], lambda old: b""])
def test_a_damaged_cache_is_drawn_again(cache, damage):
    first = glyphs.load(train=70, test=62)
    for path in cache.iterdir():
        path.write_bytes(damage(path.read_bytes()))
    again = glyphs.load(train=70, test=62)
    assert (again.train.pixels == first.train.pixels).all()
    assert (again.test.pixels == first.test.pixels).all()
    assert all(hashlib.sha256(path.read_bytes()[32:]).digest() == path.read_bytes()[:32] for path in cache.iterdir())


def test_a_cached_file_of_another_size_is_drawn_again(cache):
    first = glyphs.load(train=70, test=62)
    smaller, larger = sorted(cache.iterdir())
    smaller.write_bytes(larger.read_bytes())
    assert (glyphs.load(train=70, test=62).test.pixels == first.test.pixels).all()


def test_a_cache_that_cannot_be_written_is_ignored(cache):
    cache.write_text("a file where the folder would be")
    assert len(glyphs.load(train=70, test=62).train) == 70


def test_a_missing_home_folder_is_ignored(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(glyphs.Path, "home", homeless)
    assert len(glyphs.load(train=70, test=62).test) == 62


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": 0}, "train must be at least 1 image, got 0"),
        ({"test": -1}, "test must be at least 1 image, got -1"),
        ({"seed": -1}, r"seed must be at least 0 and less than 2 \*\* 63, got -1"),
    ],
)
def test_an_invalid_argument_is_rejected(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        glyphs.load(**{"train": 62, "test": 62} | arguments)
