"""Each augmentation against a loop over images and pixels, in float64 and from its definition."""

from dataclasses import replace
from itertools import permutations
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

from snapens.lab.data.augment import AUGMENTATIONS, Crop
from snapens.lab.data.images import Images
from snapens.lab.engine.feed import Feed
from snapens.lab.recipe.transforms import Batch, ColourJitter, Cutout, Lighting, Mirror

MEAN, DEVIATION = np.array([120.0, 100.0, 90.0]), np.array([60.0, 50.5, 70.25])
LARGEST = 1 - 2**-24  # of the numbers drawn in [0, 1)


def drawn(columns, images=40, seed=0):
    draws = np.random.default_rng(seed).random((images, columns), np.float32)
    draws[0], draws[1] = 0, LARGEST
    return draws


def cropped_and_mirrored(pixels, draws):
    """Normalise, pad with four zeros, crop, mirror: the order of the authors' code, but for the mirror's place."""
    found = np.zeros((len(pixels), 3, tiny.SIZE, tiny.SIZE))
    for image, (down, right, mirror, *_) in enumerate(draws):
        top, left = int(down * 9) - 4, int(right * 9) - 4
        for row in range(tiny.SIZE):
            for column in range(tiny.SIZE):
                y, x = row + top, left + (tiny.SIZE - 1 - column if mirror >= 0.5 else column)
                if 0 <= y < tiny.SIZE and 0 <= x < tiny.SIZE:
                    found[image, :, row, column] = (pixels[image, y, x] - MEAN) / DEVIATION
    return found


def augmented(name, pixels, draws, transforms=None):
    """What a step reads of some images whose numbers are these draws."""
    data = tiny.data(mean=tuple(MEAN), deviation=tuple(DEVIATION), augmentation="none")
    data = replace(data, train=Images(tiny.Files(pixels), np.zeros(len(pixels), np.int64)), augmentation=name)
    feed = Feed(data.place(torch.device("cpu")), data.transforms if transforms is None else transforms, 0, len(pixels))
    feed._order = SimpleNamespace(rows=lambda step, steps: (np.arange(len(pixels))[None], draws[None]))
    feed._placed.read = lambda indices, draws: feed._placed._padded(pixels)
    feed.prepare(0)
    return feed.read(torch.tensor([0])).inputs


def test_crop_mirror_equals_a_loop_over_pixels_and_its_padding_is_exactly_zero():
    pixels, draws = tiny.images(40, 3).pixels, drawn(3)
    found = augmented("crop-mirror", pixels, draws)
    expected = cropped_and_mirrored(pixels, draws)
    assert found.shape == (40, 3, 8, 8)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert np.abs(found.numpy() - expected).max() < 1e-6
    assert (expected == 0).sum() > 1000
    assert (found.numpy()[expected == 0] == 0).all()


def test_every_crop_and_mirror_is_as_likely_as_the_others():
    draws = torch.arange(81 * 2)[:, None].expand(-1, 3).clone().float()
    draws[:, 0], draws[:, 1], draws[:, 2] = draws[:, 0] // 18, draws[:, 1] // 2 % 9, draws[:, 2] % 2
    draws = (draws + 0.5) / torch.tensor([9, 9, 2])  # the middle of each of 9 × 9 × 2 equal boxes
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    crops = Crop(padding=4)(pixels, torch.zeros(162, dtype=torch.int64), draws)
    images = Mirror()(Batch(crops, torch.zeros(162)), draws[:, 2:]).inputs
    assert len({tuple(image.flatten().tolist()) for image in images}) == 162


def colour_jittered(image, draws):
    """fb.resnet.torch's ColorJitter: each blends with black, the mean grey or grey, by 1 ± 0.4."""
    for kind in list(permutations(range(3)))[int(draws[3] * 6)]:
        grey = image @ np.array([0.299, 0.587, 0.114])
        target = [np.zeros_like(image), np.full_like(image, grey.mean()), np.repeat(grey[:, :, None], 3, 2)][kind]
        alpha = 1 + 0.4 * (2 * draws[kind] - 1)
        image = alpha * image + (1 - alpha) * target
    return image


def lighting(draws):
    """fb.resnet.torch's Lighting, in units of pixels: its eigenvectors times alpha times its eigenvalues, summed."""
    values = [0.2175, 0.0188, 0.0045]
    vectors = [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
    alpha = [0.1 * NormalDist().inv_cdf(min(max(float(draw), 2**-24), 1 - 2**-24)) for draw in draws]
    return [255 * sum(vectors[channel][k] * alpha[k] * values[k] for k in range(3)) for channel in range(3)]


def test_lighting_shifts_the_colours_along_the_principal_components():
    pixels, draws = tiny.images(40, 3).pixels, drawn(6)
    expected = cropped_and_mirrored(pixels, draws)
    shifts = np.array([lighting(row[3:]) for row in draws]) / DEVIATION
    inside = cropped_and_mirrored(np.full_like(pixels, 255), draws) != 0  # the padding stays zero
    found = augmented("crop-mirror-rgb", pixels, draws)
    assert np.abs(found.numpy() - (expected + inside * shifts[:, :, None, None])).max() < 1e-5
    assert 0.1 < inside.mean() < 0.9
    assert np.abs(shifts).max() > 0.1


def test_the_shifts_of_lighting_have_the_covariance_of_its_definition():
    shifts = Lighting(0.1)(Batch(torch.zeros(100_000, 1, 1, 3), torch.zeros(100_000)), torch.rand(100_000, 3)).inputs
    vectors = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
    expected = vectors @ np.diag(np.array([0.2175, 0.0188, 0.0045]) * 25.5) ** 2 @ vectors.T
    assert np.allclose(np.cov(shifts[:, 0, 0].numpy().T), expected, rtol=0.03)


def test_imagenets_images_are_mirrored_jittered_and_lit_after_the_reader_has_cropped_them():
    pixels, draws = tiny.images(60, 3).pixels, drawn(12, 60)
    expected = []
    for image, row in zip(pixels.astype(float), draws.astype(float), strict=True):
        image = image[:, ::-1] if row[4] >= 0.5 else image
        image = colour_jittered(image, row[5:9]) + lighting(row[9:])
        expected.append(((image - MEAN) / DEVIATION).transpose(2, 0, 1))
    assert len({int(draw * 6) for draw in draws[:, 8]}) == 6  # all orders are among them
    assert np.abs(augmented("imagenet", pixels, draws).numpy() - np.array(expected)).max() < 2e-5


@pytest.mark.parametrize("size", [1, 3, 4, 8, 20])
def test_cutout_paints_a_square_around_a_pixel_of_the_image_and_cuts_off_what_lies_outside(size):
    pixels, draws = tiny.images(40, 3).pixels, drawn(2)
    fill = torch.tensor([7.0, 8.0, 9.0])
    expected = pixels.astype(np.float32)
    for image, (down, right) in zip(expected, draws, strict=True):
        row, column = int(down * tiny.SIZE), int(right * tiny.SIZE)
        for y in range(row - size // 2, row - size // 2 + size):
            for x in range(column - size // 2, column - size // 2 + size):
                if 0 <= y < tiny.SIZE and 0 <= x < tiny.SIZE:
                    image[y, x] = fill.numpy()
    batch = Batch(torch.from_numpy(pixels).float(), torch.zeros(40), fill)
    assert np.array_equal(Cutout(size)(batch, torch.from_numpy(draws)).inputs.numpy(), expected)


def test_cutout_leaves_a_hole_that_is_exactly_zero_once_normalised():
    data = tiny.data()
    placed = data.place(torch.device("cpu"))
    rows = placed.rows
    batch = placed.take(rows, torch.arange(5), torch.zeros(5), torch.full((5, 2), 0.5), inside=False)
    found = placed.finish(Cutout(2)(batch, torch.full((5, 2), 0.5)).inputs)
    assert (found[:, :, 3:5, 3:5] == 0).all()
    assert (found != 0).any(1).sum() > 5 * 50


@pytest.mark.parametrize(
    "transforms", [(Lighting(0.5), Mirror()), (ColourJitter(0.9),), (Mirror(), ColourJitter(), Cutout(4))]
)
def test_padding_is_exactly_zero_whatever_colours_change(transforms):
    columns = 2 + sum(transform.columns for transform in transforms)
    pixels, draws = tiny.images(40, 3).pixels, drawn(columns)
    found = augmented("crop-mirror", pixels, draws, transforms).numpy()
    corner = [k for k, (down, right, *_) in enumerate(draws) if int(down * 9) == 0]  # four rows of padding above
    assert len(corner) > 1
    assert all((found[k, :, :4] == 0).all() for k in corner)


def test_a_hole_keeps_its_colour_when_colours_change_later():
    pixels, draws = tiny.images(40, 3).pixels, drawn(7)
    draws[:, 2:4] = 0.5  # in the middle
    found = augmented("crop-mirror", pixels, draws, (Cutout(2), Lighting(0.5))).numpy()
    assert (found[:, :, 3:5, 3:5] == 0).all()


def test_none_only_normalises():
    pixels = tiny.images(10, 3).pixels
    expected = ((pixels - MEAN) / DEVIATION).transpose(0, 3, 1, 2)
    found = augmented("none", pixels, np.zeros((10, 0), np.float32))
    assert np.abs(found.numpy() - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "crop", "columns"),
    [
        ("none", 0, 0),
        ("crop-mirror", 2, 1),  # down, right; mirror
        ("crop-mirror-rgb", 2, 4),  # and three components
        ("imagenet", 4, 8),  # area, aspect, left, top; mirror; three blends and their order; three components
    ],
)
def test_as_many_numbers_are_drawn_as_the_augmentation_needs(name, crop, columns):
    found = AUGMENTATIONS[name]
    assert (found.crop.columns, sum(transform.columns for transform in found.transforms)) == (crop, columns)
