"""A feed's batches against a loop that reads the data set image by image."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from snapens.errors import ArgumentError
from snapens.lab.data.ahead import read_ahead
from snapens.lab.data.augment import AUGMENTATIONS
from snapens.lab.data.images import Images
from snapens.lab.data.order import Order
from snapens.lab.data.placed import _EVALUATION_PIXELS, PlacedImages
from snapens.lab.engine.feed import Feed
from snapens.lab.recipe import Mixup
from snapens.lab.recipe.transforms import Batch

CPU = torch.device("cpu")
BATCH, SEED = 7, 5  # 40 images: batches straddle epochs


def fed(data, batch=BATCH):
    return Feed(PlacedImages(data, CPU), data.transforms, SEED, batch)


def expected(data, step, batch=BATCH):
    """The batch of a step: each image of the order, padded, cropped and mirrored on its own."""
    columns = {"none": 0, "crop-mirror": 3}[data.augmentation]
    indices, draws = Order(SEED, len(data.train), batch, columns).rows(step, 1)
    mean, deviation = (torch.tensor(row, dtype=torch.float64) for row in data.normalisation())
    images = []
    for index, row in zip(indices[0], draws[0], strict=True):
        if isinstance(data.train.pixels, np.ndarray):
            pixels = data.train.pixels[index]
        else:
            pixels = data.train.pixels.crops(np.array([index]), None)[0]
        image = (torch.from_numpy(pixels).double() - mean) / deviation
        if columns:
            image = torch.nn.functional.pad(image, (0, 0, 4, 4, 4, 4))
            top, left = int(row[0] * 9), int(row[1] * 9)
            image = image[top : top + 8, left : left + 8]
            image = image.flip(1) if row[2] >= 0.5 else image
        images.append(image.permute(2, 0, 1))
    return torch.stack(images), torch.from_numpy(data.train.labels[indices[0]])


def assert_batch(feed, data, step, batch=BATCH):
    feed.prepare(step)
    images, labels = feed.read(torch.tensor([step]))[:2]
    wanted, known = expected(data, step, batch)
    assert torch.equal(labels, known)
    assert images.dtype == torch.float32
    assert (images - wanted).abs().max() < 1e-6


def files(data, **changes):
    """The same images, to be decoded."""
    mean, deviation = data.normalisation()
    train = Images(tiny.Files(data.train.pixels), data.train.labels)
    return replace(data, train=train, mean=mean, deviation=deviation, **changes)


SOURCES = {
    "resident": lambda: tiny.data(),
    "one channel": lambda: tiny.data(channels=1),
    "not augmented": lambda: tiny.data(augmentation="none"),
    "files": lambda: files(tiny.data(augmentation="none")),
    "padded files": lambda: files(tiny.data()),
}


@pytest.mark.parametrize("data", SOURCES.values(), ids=SOURCES)
def test_batches_are_those_of_a_plain_loop(data):
    data = data()
    feed = fed(data)
    for step in range(20):
        assert_batch(feed, data, step)


@pytest.mark.parametrize("augmentation", ["none", "crop-mirror"])
def test_images_that_do_not_fit_are_streamed_into_the_same_batches(monkeypatch, augmentation):
    data = tiny.data(augmentation=augmentation)
    resident = fed(data)
    monkeypatch.setattr(PlacedImages, "resident", False)
    streamed = fed(data)
    for step in (*range(20), 3, 4, 40):
        assert_batch(streamed, data, step)
        monkeypatch.setattr(PlacedImages, "resident", True)
        resident.prepare(step)
        ours = resident.read(torch.tensor([step]))
        monkeypatch.setattr(PlacedImages, "resident", False)
        theirs = streamed.read(torch.tensor([step]))
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.targets, theirs.targets)


def test_files_get_the_draws_that_place_their_boxes_and_the_others_drive_the_colours(monkeypatch):
    data = files(tiny.data(), augmentation="imagenet")
    asked = []
    crops = data.train.pixels.crops

    def noted(indices, draws):
        asked.append((tuple(indices), draws))
        return crops(indices, draws)

    monkeypatch.setattr(data.train.pixels, "crops", noted)
    placed = PlacedImages(data, CPU)
    feed = Feed(placed, data.transforms, SEED, BATCH)
    feed.prepare(0)
    images = feed.read(torch.tensor([0])).inputs
    indices, draws = Order(SEED, 40, BATCH, 12).rows(0, 1)
    assert np.array_equal(dict(asked)[tuple(indices[0])], draws[0, :, :4])
    batch = Batch(torch.from_numpy(crops(indices[0], draws[0, :, :4])).float(), torch.zeros(BATCH))
    for transform, first, last in zip(AUGMENTATIONS["imagenet"].transforms, (4, 5, 9), (5, 9, 12), strict=True):
        batch = transform(batch, torch.from_numpy(draws[0, :, first:last]))
    assert torch.equal(images, placed.finish(batch.inputs))


@pytest.mark.parametrize("data", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("jumps", [(0, 13, 14, 15), (31, 32, 33), (9, 2, 3, 50), (0, 1, 1, 0), (6, 7, 0, 1)])
def test_a_jump_lands_on_the_right_batch(data, jumps):
    data = data()
    feed = fed(data)
    for step in jumps:
        assert_batch(feed, data, step)


def test_a_batch_may_be_larger_than_the_data():
    feed = fed(tiny.data(), 100)
    for step in range(4):
        assert_batch(feed, tiny.data(), step, batch=100)


def test_the_buffers_stay_where_they_are(monkeypatch):
    monkeypatch.setattr(PlacedImages, "resident", False)
    feed = fed(tiny.data())
    places = {name: value.data_ptr() for name, value in vars(feed).items() if torch.is_tensor(value)}
    for step in (0, 1, 2, 30):
        feed.prepare(step)
    assert {name: value.data_ptr() for name, value in vars(feed).items() if torch.is_tensor(value)} == places
    assert len(places) == 5


def test_an_error_in_decoding_reaches_the_one_who_trains(monkeypatch):
    data = files(tiny.data(augmentation="none"))
    main = threading.get_ident()

    def torn(indices, draws):
        assert threading.get_ident() != main
        raise OSError("a torn file")

    feed = fed(data)
    monkeypatch.setattr(data.train.pixels, "crops", torn)
    with pytest.raises(OSError, match="a torn file"):
        feed.prepare(0)


def test_reading_ahead_is_abandoned_without_waiting_for_what_is_being_read():
    release = threading.Event()
    ahead = read_ahead(lambda k: k if k == 0 else release.wait(), range(100))
    assert next(ahead) == 0
    closing = threading.Thread(target=ahead.close)
    closing.start()
    closing.join(60)  # for ever, if it waits
    waits = closing.is_alive()
    release.set()
    assert not waits


@pytest.mark.parametrize("data", SOURCES.values(), ids=SOURCES)
def test_an_evaluation_sees_every_image_in_order_and_as_it_is(data, monkeypatch):
    data = data()
    test = data.test if isinstance(data.train.pixels, np.ndarray) else data.train
    monkeypatch.setitem(_EVALUATION_PIXELS, "cpu", 9 * data.size**2)
    batches = list(PlacedImages(data, CPU).batches(test))
    assert [len(batch) for batch in batches] == [9] * (len(test) // 9) + [len(test) % 9]
    pixels = test.pixels if isinstance(test.pixels, np.ndarray) else test.pixels.pixels
    mean, deviation = data.normalisation()
    wanted = ((pixels - np.array(mean)) / np.array(deviation)).transpose(0, 3, 1, 2)
    assert np.abs(torch.cat(batches).numpy() - wanted).max() < 1e-6


@pytest.mark.parametrize(("images", "steps"), [(1, 1), (2 * BATCH + 1, 3), (10_000, None)])
@pytest.mark.parametrize("data", SOURCES.values(), ids=SOURCES)
def test_a_sample_is_what_the_first_steps_see_in_batches_of_an_evaluation(data, monkeypatch, images, steps):
    data = data()
    monkeypatch.setitem(_EVALUATION_PIXELS, "cpu", 2 * BATCH * data.size**2)
    feed = fed(data)
    feed.prepare(7)
    found = list(feed.sample(images))
    count = steps or -(-len(data.train) // BATCH)
    assert [len(batch) for batch in found] == [2 * BATCH] * (count // 2) + [BATCH] * (count % 2)
    assert torch.allclose(
        torch.cat(found), torch.cat([expected(data, step)[0].float() for step in range(count)]), atol=1e-5
    )


@pytest.mark.parametrize(("padding", "images"), [(0, 100), (tiny.SIZE, 900)])
def test_images_stay_on_a_gpu_if_they_need_less_than_two_fifths_of_its_free_memory(monkeypatch, padding, images):
    """With padding on both sides as wide as the image, they need nine times as much."""
    least = images * 3 * tiny.SIZE**2 * 5 // 2
    for free, fits in ((least, False), (least + 3, True)):
        placed = PlacedImages(tiny.data(train=100), CPU, padding)
        placed.device = torch.device("cuda")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10 * free))
        assert placed.resident is fits


def test_arrays_lie_on_the_device_and_files_do_not():
    assert PlacedImages(tiny.data(), CPU).resident
    assert not PlacedImages(files(tiny.data(augmentation="none")), CPU).resident


def test_numbers_of_any_precision_normalise_in_float32():
    data = tiny.data(mean=tuple(np.array([100.0] * 3)), deviation=tuple(np.array([50.0] * 3)))
    assert next(PlacedImages(data, CPU).batches(data.test)).dtype == torch.float32


def test_parts_of_a_batch_have_the_pairs_that_the_whole_batch_mixes():
    placed, step = PlacedImages(tiny.data(), CPU), torch.zeros(1, dtype=torch.int64)

    def read(batch, part=None):
        feed = Feed(placed, (Mixup(alpha=1.0),), SEED, batch, part)
        feed.prepare(0)
        return feed.read(step).inputs

    assert torch.equal(torch.cat([read(8, slice(0, 4)), read(8, slice(4, 8))]), read(8))
    assert len(read(7)) == 7  # one process: the last example is its own neighbour
    with pytest.raises(ArgumentError, match=r"even number of examples per process, .* got 3"):
        read(6, slice(3, 6))
