"""Each scheme against a loop over images and pixels, in float64 and from its definition."""

from itertools import permutations
from statistics import NormalDist

import numpy as np
import pytest
import tiny
import torch

from snapens.lab.data.augment import AUGMENTATIONS, Scheme
from snapens.lab.engine.feed import Placed

MEAN, DEVIATION = np.array([120.0, 100.0, 90.0]), np.array([60.0, 50.5, 70.25])
LARGEST = 1 - 2**-24  # of the numbers drawn in [0, 1)


def drawn(scheme, images=40, seed=0):
    draws = np.random.default_rng(seed).random((images, scheme.columns), np.float32)
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


def augmented(scheme, pixels, draws):
    data = tiny.data(mean=tuple(MEAN), deviation=tuple(DEVIATION), augmentation=scheme)
    placed, draws = Placed(data, torch.device("cpu")), torch.from_numpy(draws)
    padded = torch.from_numpy(placed.padded(pixels))
    cropped = placed.scheme.crop(padded, torch.arange(len(pixels)), draws)
    assert cropped.dtype == torch.uint8
    return placed.scheme.finish(cropped, draws, placed.mean, placed.deviation)


def test_crop_mirror_equals_a_loop_over_pixels_and_its_padding_is_exactly_zero():
    pixels, draws = tiny.images(40, 3).pixels, drawn(AUGMENTATIONS["crop-mirror"])
    found = augmented("crop-mirror", pixels, draws)
    expected = cropped_and_mirrored(pixels, draws)
    assert found.shape == (40, 3, 8, 8)
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert np.abs(found.numpy() - expected).max() < 1e-6
    assert (expected == 0).sum() > 1000
    assert (found.numpy()[expected == 0] == 0).all()


def test_every_crop_and_mirror_is_as_likely_as_the_others():
    scheme = AUGMENTATIONS["crop-mirror"]
    draws = torch.arange(81 * 2)[:, None].expand(-1, 3).clone().float()
    draws[:, 0], draws[:, 1], draws[:, 2] = draws[:, 0] // 18, draws[:, 1] // 2 % 9, draws[:, 2] % 2
    draws = (draws + 0.5) / torch.tensor([9, 9, 2])  # the middle of each of 9 × 9 × 2 equal boxes
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    crops = scheme.crop(pixels, torch.zeros(162, dtype=torch.int64), draws)
    images = scheme.finish(crops, draws, torch.zeros(1), torch.ones(1))
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
    pixels, draws = tiny.images(40, 3).pixels, drawn(AUGMENTATIONS["crop-mirror-rgb"])
    expected = cropped_and_mirrored(pixels, draws)
    shifts = np.array([lighting(row[3:]) for row in draws]) / DEVIATION
    inside = cropped_and_mirrored(np.full_like(pixels, 255), draws) != 0  # the padding stays zero
    found = augmented("crop-mirror-rgb", pixels, draws)
    assert np.abs(found.numpy() - (expected + inside * shifts[:, :, None, None])).max() < 1e-5
    assert 0.1 < inside.mean() < 0.9
    assert np.abs(shifts).max() > 0.1


def test_the_shifts_of_lighting_have_the_covariance_of_its_definition():
    scheme = AUGMENTATIONS["crop-mirror-rgb"]
    draws = torch.rand(100_000, scheme.columns)
    draws[:, :2] = 0.5  # a crop without padding
    shifts = scheme.finish(torch.zeros(100_000, 1, 1, 3, dtype=torch.uint8), draws, torch.zeros(3), torch.ones(3))
    vectors = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
    expected = vectors @ np.diag(np.array([0.2175, 0.0188, 0.0045]) * 25.5) ** 2 @ vectors.T
    assert np.allclose(np.cov(shifts[:, :, 0, 0].numpy().T), expected, rtol=0.03)


def test_imagenets_scheme_mirrors_jitters_and_lights_what_the_reader_has_cropped():
    scheme = AUGMENTATIONS["imagenet"]
    pixels, draws = tiny.images(60, 3).pixels, drawn(scheme, 60)
    expected = []
    for image, row in zip(pixels.astype(float), draws.astype(float), strict=True):
        image = image[:, ::-1] if row[4] >= 0.5 else image
        image = colour_jittered(image, row[5:9]) + lighting(row[9:])
        expected.append(((image - MEAN) / DEVIATION).transpose(2, 0, 1))
    assert len({int(draw * 6) for draw in draws[:, 8]}) == 6  # all orders are among them
    mean, deviation = (torch.tensor(row, dtype=torch.float32) for row in (MEAN, DEVIATION))
    found = scheme.finish(torch.from_numpy(pixels), torch.from_numpy(draws), mean, deviation)
    assert np.abs(found.numpy() - np.array(expected)).max() < 2e-5


def test_none_only_normalises():
    pixels = tiny.images(10, 3).pixels
    expected = ((pixels - MEAN) / DEVIATION).transpose(0, 3, 1, 2)
    found = augmented("none", pixels, np.zeros((10, 0), np.float32))
    assert np.abs(found.numpy() - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "geometry", "columns"),
    [
        ("none", 0, 0),
        ("crop-mirror", 2, 3),  # down, right; mirror
        ("crop-mirror-rgb", 2, 6),  # and three components
        ("imagenet", 4, 12),  # area, aspect, left, top; mirror; three blends and their order; three components
    ],
)
def test_as_many_numbers_are_drawn_as_the_scheme_needs(name, geometry, columns):
    assert (AUGMENTATIONS[name].geometry, AUGMENTATIONS[name].columns) == (geometry, columns)


def test_no_scheme_has_a_part_in_anothers_columns():
    assert Scheme(mirror=True).columns == 1
    pixels = torch.arange(6, dtype=torch.uint8).view(1, 1, 2, 3)
    mirrored = Scheme(mirror=True).finish(pixels, torch.tensor([[0.5]]), torch.zeros(3), torch.ones(3))
    assert mirrored[0, :, 0].T.tolist() == [[3, 4, 5], [0, 1, 2]]
