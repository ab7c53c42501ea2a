import os
import sys

import formats
import numpy as np
import pytest
from PIL import Image

from snapens.errors import DataError, MissingPackageError, SnapensError
from snapens.lab.data import files
from snapens.lab.data.files import PhotoFiles, central_box, random_box
from snapens.lab.data.images import Images


@pytest.fixture(params=["simplejpeg", "pillow"])
def decoder(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    files._jpeg_decoder.cache_clear()
    yield request.param
    files._jpeg_decoder.cache_clear()


def gradient(width, height):
    """Red encodes the column and green the row, from 0 to 255."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([across, down, np.full_like(across, 99)], -1).round().astype(np.uint8)


def test_a_random_box_has_the_area_aspect_and_place_that_were_drawn():
    draws = np.random.default_rng(0).random((1000, 4), np.float32)
    for row in draws:
        left, top, right, bottom = random_box(400, 300, row)
        assert 0 <= left < right <= 400
        assert 0 <= top < bottom <= 300
        width, height = right - left, bottom - top
        if width < 400 and height < 300:
            assert width * height == pytest.approx((0.08 + 0.92 * row[0]) * 400 * 300, rel=0.02)
            assert np.log(width / height) == pytest.approx(np.log(4 / 3) * (2 * row[1] - 1), abs=0.02)
        assert left == pytest.approx(row[2] * (400 - width), abs=1)
        assert top == pytest.approx(row[3] * (300 - height), abs=1)


def test_extreme_draws_give_boxes_inside_the_image_even_if_it_is_tiny():
    last = np.nextafter(np.float32(1), np.float32(0))
    for width, height in ((1, 1), (2, 1), (1, 500), (5000, 3)):
        for corner in np.ndindex(2, 2, 2, 2):
            left, top, right, bottom = random_box(width, height, np.array(corner, np.float32) * last)
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height


def test_a_crop_contains_the_pixels_of_its_box(tmp_path, decoder):
    formats.jpeg(tmp_path / "a.jpg", gradient(1000, 600))
    formats.png(tmp_path / "b.png", gradient(300, 500))
    photos = PhotoFiles(tmp_path, ["a.jpg", "b.png"])
    draws = np.random.default_rng(1).random((2, 5), np.float32)
    for some in (draws, 1 - draws, draws * 0, None):
        crops = photos.crops(np.array([0, 1]), some)
        assert crops.shape == (2, 224, 224, 3)
        for row, (width, height) in enumerate(((1000, 600), (300, 500))):
            box = central_box(width, height) if some is None else random_box(width, height, some[row])
            left, top, right, bottom = box
            columns = (left + (np.arange(224) + 0.5) / 224 * (right - left) - 0.5) / (width - 1) * 255
            rows = (top + (np.arange(224) + 0.5) / 224 * (bottom - top) - 0.5) / (height - 1) * 255
            assert np.abs(crops[row, :, :, 0] - columns).max() < 5
            assert np.abs(crops[row, :, :, 1] - rows[:, None]).max() < 5


def test_the_central_crop_equals_resizing_to_256_and_cropping(tmp_path):
    image = gradient(512, 384)
    formats.png(tmp_path / "a.png", image)
    resized = Image.fromarray(image).resize((341, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(resized)[16:240, 58:282].astype(int)
    found = PhotoFiles(tmp_path, ["a.png"]).crops(np.array([0]), None)[0]
    assert np.abs(found - expected)[2:-2, 2:-2].max() <= 2


@pytest.mark.parametrize("shape", [(225, 450), (449, 897), (900, 1793), (31, 57)])
@pytest.mark.parametrize("gray", [False, True])
def test_both_decoders_give_the_same_pixels(tmp_path, monkeypatch, shape, gray):
    path = tmp_path / "a.jpg"
    formats.jpeg(path, formats.noise(1, size=1800)[0][: shape[0], : shape[1]], gray=gray)
    draws = np.random.default_rng(2).random((3, 4), np.float32)
    crops = []
    for missing in (False, True):
        if missing:
            monkeypatch.setitem(sys.modules, "simplejpeg", None)
        files._jpeg_decoder.cache_clear()
        crops.append([PhotoFiles(tmp_path, [path.name]).crops(np.zeros(3, np.int64), some) for some in (draws, None)])
    files._jpeg_decoder.cache_clear()
    np.testing.assert_array_equal(crops[0][0], crops[1][0])
    np.testing.assert_array_equal(crops[0][1], crops[1][1])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_with_8_bits_is_converted_to_rgb(tmp_path, decoder, mode):
    path = tmp_path / {"CMYK": "a.jpg", "YCbCr": "a.tif"}.get(mode, "a.png")
    Image.new("RGB", (70, 70), "white").convert(mode).save(path)
    assert files.sizes(PhotoFiles(tmp_path, [path.name])) == [(70, 70)]
    assert PhotoFiles(tmp_path, [path.name]).crops(np.array([0]), None).min() >= 250


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path):
    image = Image.new("P", (70, 70), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "a.png", transparency=b"\x00\xff")
    assert PhotoFiles(tmp_path, ["a.png"]).crops(np.array([0]), None)[0, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.gif", "a.webp", "a.tif"])
def test_an_incomplete_file_is_detected_before_and_during_training(tmp_path, decoder, name):
    path = tmp_path / name
    Image.fromarray(formats.noise(1, size=100)[0]).save(path)
    assert files.sizes(PhotoFiles(tmp_path, [name])) == [(100, 100)]
    path.write_bytes(path.read_bytes()[:-500])
    message = rf"images must be whole files .*, got 1 that cannot be used: replace or remove it\n  .*{name}: \w+: "
    with pytest.raises(DataError, match=message):
        files.sizes(PhotoFiles(tmp_path, [name]))
    with pytest.raises(DataError, match=message):
        PhotoFiles(tmp_path, [path.name]).crops(np.array([0]), None)


def test_a_flaw_that_pillow_ignores_is_accepted(tmp_path, decoder):
    path = tmp_path / "a.jpg"
    formats.jpeg(path, gradient(300, 300))
    expected = PhotoFiles(tmp_path, [path.name]).crops(np.array([0]), None)
    path.write_bytes(path.read_bytes()[:-2] + b"extraneous\xff\xd9")
    assert files.sizes(PhotoFiles(tmp_path, ["a.jpg"])) == [(300, 300)]
    np.testing.assert_array_equal(PhotoFiles(tmp_path, [path.name]).crops(np.array([0]), None), expected)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an image of a known format"),
        (b"hello", "not an image of a known format"),
        (None, "FileNotFoundError"),
    ],
)
def test_a_file_that_is_not_an_image_is_rejected(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=rf"got 1 that cannot be used: replace or remove it\n  .*a.png: {reason}"):
        files.sizes(PhotoFiles(tmp_path, ["a.png"]))


def test_16_bits_per_channel_are_rejected(tmp_path):
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a.png: pixels of mode I;16 where 8 bits per channel are required"):
        files.sizes(PhotoFiles(tmp_path, ["a.png"]))


def test_without_pillow_the_error_for_a_photo_says_what_to_install(tmp_path, monkeypatch):
    formats.png(tmp_path / "a.png", gradient(300, 300))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)  # importing it fails
    with pytest.raises(MissingPackageError, match=r"PIL must be installed for this: pip install .*\[data\]"):
        PhotoFiles(tmp_path, ["a.png"]).crops(np.array([0]), None)


def digest(root, names):
    return Images(PhotoFiles(root, names), np.zeros(len(names), np.int64)).digest


def test_other_photos_under_the_same_names_have_another_digest(tmp_path):
    names = [f"{number}.png" for number in range(5)]
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        for name, pixels in zip(names, formats.noise(5, size=90, seed=seed), strict=True):
            formats.png(tmp_path / folder / name, pixels)
    assert digest(tmp_path / "a", names) == digest(tmp_path / "b", names)
    assert digest(tmp_path / "a", names) != digest(tmp_path / "c", names)


def test_a_digest_covers_all_names_and_sizes_and_the_bytes_of_up_to_1000_files(tmp_path):
    names = [f"{number:04}" for number in range(2001)]
    for name in names:
        (tmp_path / name).write_bytes(b"a")
    before = digest(tmp_path, names)
    assert list(PhotoFiles(tmp_path, names).identity()).count(b"a") == 667  # every third file
    (tmp_path / "0001").write_bytes(b"b")
    assert digest(tmp_path, names) == before
    (tmp_path / "0001").write_bytes(b"aa")
    assert digest(tmp_path, names) != before
    (tmp_path / "0001").write_bytes(b"a")
    (tmp_path / "2000").rename(tmp_path / "x")
    assert digest(tmp_path, [*names[:-1], "x"]) != before
    (tmp_path / "0003").write_bytes(b"b")
    assert digest(tmp_path, [*names[:-1], "x"]) != digest(tmp_path, names[:-1])
    (tmp_path / "0000").unlink()
    with pytest.raises(DataError, match=r"0000: FileNotFoundError"):
        digest(tmp_path, names)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_is_rejected_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    photos = PhotoFiles(tmp_path, ["a.png"])
    for use in (files.sizes, lambda photos: photos.crops(np.array([0]), None), lambda photos: [*photos.identity()]):
        with pytest.raises(DataError, match=r"a.png: must be a regular file: restore it"):
            use(photos)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    with open(tmp_path / "a.png", "wb") as file:
        file.truncate(8 << 30)  # a hole: it takes no room
    with pytest.raises(DataError, match=r"a.png: must have at most 536870912 bytes, got 8589934592"):
        files.sizes(PhotoFiles(tmp_path, ["a.png"]))


def test_a_missing_pillow_is_an_error_that_names_the_extra(tmp_path, monkeypatch):
    formats.png(tmp_path / "a.png", gradient(9, 9))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(SnapensError, match=r'PIL must be installed .*: pip install .*\[data\]"'):
        files.sizes(PhotoFiles(tmp_path, ["a.png"]))
