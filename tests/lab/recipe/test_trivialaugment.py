"""Every operation of TrivialAugment, with every strength and sign, against Pillow's own."""

import numpy as np
import pytest
import tiny
import torch
from PIL import Image, ImageEnhance, ImageOps

from snapens.lab.data.order import Order
from snapens.lab.engine.feed import Feed
from snapens.lab.recipe import TrivialAugment
from snapens.lab.recipe.batch import Batch

FILL = (120, 100, 90)
LARGEST = 1 - 2**-24
# torchvision's TrivialAugmentWide: its operations in order, and the 31 strengths of each
STRENGTHS = {
    "Identity": np.zeros(31),
    "ShearX": np.linspace(0, 0.99, 31),
    "ShearY": np.linspace(0, 0.99, 31),
    "TranslateX": np.linspace(0, 32, 31),
    "TranslateY": np.linspace(0, 32, 31),
    "Rotate": np.linspace(0, 135, 31),
    "Brightness": np.linspace(0, 0.99, 31),
    "Color": np.linspace(0, 0.99, 31),
    "Contrast": np.linspace(0, 0.99, 31),
    "Sharpness": np.linspace(0, 0.99, 31),
    "Posterize": 8 - np.round(np.arange(31) / 5).astype(int),
    "Solarize": np.linspace(255, 0, 31),
    "AutoContrast": np.zeros(31),
    "Equalize": np.zeros(31),
}
UNSIGNED = ("Posterize", "Solarize")


def with_pillow(pixels, name, strength):
    """The operation as torchvision applies it to an image of Pillow."""
    image = Image.fromarray(pixels.squeeze())
    fill = FILL if image.mode == "RGB" else FILL[0]
    whole = int(strength)
    matrices = {
        "ShearX": (1, strength, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, strength, 1, 0),
        "TranslateX": (1, 0, -whole, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, -whole),
    }
    if name in matrices:
        image = image.transform(image.size, Image.Transform.AFFINE, matrices[name], fillcolor=fill)
    elif name == "Rotate":
        image = image.rotate(strength, fillcolor=fill)
    elif name in ("Brightness", "Color", "Contrast", "Sharpness"):
        image = getattr(ImageEnhance, name)(image).enhance(1 + strength)
    elif name in ("AutoContrast", "Equalize"):
        image = getattr(ImageOps, name.lower())(image)
    elif name != "Identity":
        image = getattr(ImageOps, name.lower())(image, strength)
    return np.asarray(image).reshape(pixels.shape)


def examples(height, width, channels=3):
    """Noise, a photo-like gradient, few values, one value, and values from a part of the range."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width] / max(height, width)
    gradient = 255 * (0.5 + 0.5 * np.sin(3 * x[..., None] + 2 * y[..., None] + np.arange(channels)))
    shape = (height, width, channels)
    return np.stack(
        [
            rng.integers(0, 256, shape),
            (gradient + rng.normal(0, 4, shape)).clip(0, 255),
            rng.choice([10, 77, 200], shape),
            np.full(shape, 93),
            rng.integers(60, 190, shape),
        ]
    ).astype(np.uint8)


def batch(pixels):
    return Batch(
        torch.from_numpy(pixels).float(), torch.zeros(len(pixels)), torch.tensor(FILL[: pixels.shape[3]]).float()
    )


def draws(operation, strength, sign):
    """The numbers in the middle of the intervals that choose these."""
    return torch.tensor([(operation + 0.5) / 14, (strength + 0.5) / 31, (sign + 0.5) / 2])


@pytest.mark.parametrize("name", STRENGTHS)
@pytest.mark.parametrize("shape", [(32, 32, 3), (32, 32, 1), (9, 12, 3)])
def test_every_strength_and_sign_of_an_operation_equals_pillows_in_every_pixel(name, shape):
    pixels = examples(*shape)
    choices = [(k, sign) for k in range(31) for sign in (0, 1)]
    numbers = torch.stack([draws(list(STRENGTHS).index(name), *choice) for choice in choices])
    repeated = np.tile(pixels, (len(choices), 1, 1, 1))
    found = TrivialAugment()(batch(repeated), numbers.repeat_interleave(len(pixels), 0)).inputs
    signed = [STRENGTHS[name][k] * (-1 if sign and name not in UNSIGNED else 1) for k, sign in choices]
    expected = [with_pillow(image, name, strength) for strength in signed for image in pixels]
    assert np.array_equal(found.numpy(), np.stack(expected))


def test_every_image_of_a_batch_has_its_own_operation():
    pixels = np.concatenate([examples(32, 32)] * 60)
    numbers = torch.rand(len(pixels), 3, generator=torch.Generator().manual_seed(1))
    numbers[0], numbers[1] = 0, LARGEST
    found = TrivialAugment()(batch(pixels), numbers).inputs
    assert found.is_contiguous()  # the channels stay last in memory
    used = set()
    for image, row, changed in zip(pixels, numbers.tolist(), found.numpy(), strict=True):
        name = list(STRENGTHS)[int(row[0] * 14)]
        strength = STRENGTHS[name][int(row[1] * 31)]
        used.add(name)
        signed = -strength if row[2] >= 0.5 and name not in UNSIGNED else strength
        assert np.array_equal(changed, with_pillow(image, name, signed)), (name, row)
    assert used == set(STRENGTHS)


def test_what_is_uncovered_has_exactly_the_colour_of_padding_even_where_it_is_no_whole_number():
    fill = torch.tensor([123.675, 116.28, 103.53])
    images = torch.full((1, 8, 8, 3), 7.0)
    shifted = TrivialAugment()(Batch(images, torch.zeros(1), fill), draws(3, 4, 0)[None]).inputs  # by 4 pixels
    assert shifted[0, :, :4].eq(fill).all()
    assert shifted[0, :, 4:].eq(7).all()


def test_pixels_that_later_become_padding_move_with_the_image():
    inside = torch.ones(1, 8, 8, 1, dtype=torch.bool)
    inside[0, 2, 3] = False
    images = Batch(torch.zeros(1, 8, 8, 3), torch.zeros(1), torch.zeros(3), inside)
    moved = TrivialAugment()(images, draws(3, 4, 0)[None]).inside
    assert not moved[0, :, :4].any()  # uncovered
    assert not moved[0, 2, 7].any()
    assert int(moved.sum()) == 8 * 4 - 1


def test_values_between_whole_numbers_are_rounded_first():
    pixels = examples(8, 8)
    shifted = batch(pixels)._replace(inputs=torch.from_numpy(pixels).float() + 0.3)
    for operation in range(14):
        numbers = draws(operation, 20, 0).expand(len(pixels), 3)
        assert TrivialAugment()(shifted, numbers).inputs.equal(TrivialAugment()(batch(pixels), numbers).inputs)


def test_a_step_augments_the_crop_with_its_padding_as_pillow_does():
    """The padding changes its colour with the image: it is not restored afterwards."""
    data = tiny.data(mean=FILL, deviation=(60.0, 50.0, 70.0))
    placed = data.place(torch.device("cpu"))
    feed = Feed(placed, (TrivialAugment(),), seed=0, batch=40)
    feed.prepare(0)
    found = feed.read(torch.tensor([0])).inputs
    order, numbers = (torch.from_numpy(array[0]) for array in Order(0, 40, 40, 5).rows(0, 1))
    crops = placed.take(placed.rows, order, order, numbers, inside=False).inputs.numpy().astype(np.uint8)
    assert (crops == FILL).all(3).any((1, 2)).mean() > 0.9
    expected = []
    for crop, (operation, strength, sign) in zip(crops, numbers[:, 2:].tolist(), strict=True):
        name = list(STRENGTHS)[int(operation * 14)]
        signed = STRENGTHS[name][int(strength * 31)] * (-1 if sign >= 0.5 and name not in UNSIGNED else 1)
        expected.append(with_pillow(crop, name, signed))
    assert torch.equal(found, placed.finish(torch.from_numpy(np.stack(expected))))


@pytest.mark.parametrize(
    ("inputs", "suits"),
    [({"channels": 3}, True), ({"channels": 1}, True), ({"channels": 4}, False), ({"features": 3}, False)],
)
def test_grey_and_colour_images_are_accepted(inputs, suits):
    assert TrivialAugment().suits(inputs) == suits
