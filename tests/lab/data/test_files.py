import sys

import formats
import numpy as np
import pytest
from PIL import Image

from snapens.errors import DataError, SnapensError
from snapens.lab.data import files
from snapens.lab.data.files import PhotoFiles, central_box, random_box


@pytest.fixture(params=["simplejpeg", "pillow"])
def decoder(request, monkeypatch):
    if request.param == "pillow":
        monkeypatch.setitem(sys.modules, "simplejpeg", None)
    files._jpeg_decoder.cache_clear()
    yield request.param
    files._jpeg_decoder.cache_clear()


def gradient(width, height):
    """Red tells the column and green the row, from 0 to 255."""
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


def test_every_corner_of_the_draws_is_inside_even_of_a_tiny_image():
    last = np.nextafter(np.float32(1), np.float32(0))
    for width, height in ((1, 1), (2, 1), (1, 500), (5000, 3)):
        for corner in np.ndindex(2, 2, 2, 2):
            left, top, right, bottom = random_box(width, height, np.array(corner, np.float32) * last)
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height


def test_a_crop_shows_the_pixels_of_its_box(tmp_path, decoder):
    formats.jpeg(tmp_path / "a.jpg", gradient(1000, 600))
    formats.png(tmp_path / "b.png", gradient(300, 500))
    photos = PhotoFiles([tmp_path / "a.jpg", tmp_path / "b.png"])
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


def test_the_central_crop_is_that_of_resizing_to_256(tmp_path):
    image = gradient(512, 384)
    formats.png(tmp_path / "a.png", image)
    resized = Image.fromarray(image).resize((341, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(resized)[16:240, 58:282].astype(int)
    found = PhotoFiles([tmp_path / "a.png"]).crops(np.array([0]), None)[0]
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
        crops.append([PhotoFiles([path]).crops(np.zeros(3, np.int64), some) for some in (draws, None)])
    files._jpeg_decoder.cache_clear()
    np.testing.assert_array_equal(crops[0][0], crops[1][0])
    np.testing.assert_array_equal(crops[0][1], crops[1][1])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_every_mode_of_8_bits_becomes_red_green_blue(tmp_path, decoder, mode):
    path = tmp_path / {"CMYK": "a.jpg", "YCbCr": "a.tif"}.get(mode, "a.png")
    Image.new("RGB", (70, 70), "white").convert(mode).save(path)
    assert files.sizes([path]) == {(70, 70)}
    assert PhotoFiles([path]).crops(np.array([0]), None).min() >= 250


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path):
    image = Image.new("P", (70, 70), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "a.png", transparency=b"\x00\xff")
    assert PhotoFiles([tmp_path / "a.png"]).crops(np.array([0]), None)[0, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.gif", "a.webp", "a.tif"])
def test_a_cut_file_is_found_before_training_and_in_it(tmp_path, decoder, name):
    path = tmp_path / name
    Image.fromarray(formats.noise(1, size=100)[0]).save(path)
    assert files.sizes([path]) == {(100, 100)}
    path.write_bytes(path.read_bytes()[:-500])
    message = rf"{name} must be a whole image of 8 bits a channel, got .*: replace it or remove it"
    with pytest.raises(DataError, match=message):
        files.sizes([path])
    with pytest.raises(DataError, match=message):
        PhotoFiles([path]).crops(np.array([0]), None)


def test_a_flaw_that_pillow_reads_over_is_none(tmp_path, decoder):
    path = tmp_path / "a.jpg"
    formats.jpeg(path, gradient(300, 300))
    expected = PhotoFiles([path]).crops(np.array([0]), None)
    path.write_bytes(path.read_bytes()[:-2] + b"extraneous\xff\xd9")
    assert files.sizes([path]) == {(300, 300)}
    np.testing.assert_array_equal(PhotoFiles([path]).crops(np.array([0]), None), expected)


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_what_is_no_image_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(DataError, match=r"a.png must be a whole image"):
        files.sizes([tmp_path / "a.png"])


def test_16_bits_are_refused(tmp_path):
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="pixels of the mode I;16 where 8 bits are due"):
        files.sizes([tmp_path / "a.png"])


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    formats.png(tmp_path / "a.png", gradient(9, 9))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(SnapensError, match=r'PIL must be installed .*: pip install "snapens\[data\]"'):
        files.sizes([tmp_path / "a.png"])
