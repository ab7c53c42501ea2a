"""The images that a run's members dispute, chosen and kept."""

import numpy as np
import pytest
import tiny
import torch

from snapens.errors import DamagedError, StoreError
from snapens.lab.records import gallery
from snapens.lab.records.run import Run
from snapens.outputs import Outputs
from snapens.storage import durable, tensorfile


def run_of(path, probabilities):
    """A run whose members say this of its test images, (members, examples, classes)."""
    run = Run(path)
    snapshots = run.snapshots
    snapshots.open_to_write()
    labels = torch.zeros(len(probabilities[0]), dtype=torch.int64)
    for step, member in enumerate(probabilities, 1):
        run.add_outputs(step, {"test": (torch.tensor(member).log().half(), labels)})
        snapshots.commit(step, {"weight": torch.full((2,), float(step))})
    snapshots.close()
    return run


def information(members):
    """What the members of one example disagree about, in nats, by the definition."""
    mean = np.mean(members, axis=0)
    return sum(p * np.log(p / q) for member in members for p, q in zip(member, mean, strict=True)) / len(members)


@pytest.fixture
def probabilities():
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 2500, 4)))
    return logits.softmax(-1).numpy()


def test_the_most_disputed_come_first_and_ties_by_index(probabilities):
    probabilities[:, 2000] = probabilities[:, 10]  # in another chunk
    outputs = Outputs(np.log(probabilities).astype(np.float16), np.zeros(2500, np.int64))
    found = gallery.disputed(outputs, count=2500)
    values = [information(outputs.probabilities[:, index]) for index in found]
    assert np.all(np.diff(values) <= 1e-12)
    assert sorted(found) == list(range(2500))
    assert found.tolist().index(2000) == found.tolist().index(10) + 1


def test_what_is_kept_is_read_back(tmp_path, probabilities):
    run = run_of(tmp_path, probabilities)
    assert gallery.read(run) is None
    pixels = np.random.default_rng(1).integers(0, 256, (2500, 8, 8, 3), np.uint8)
    gallery.keep(run, pixels.__getitem__)
    kept = gallery.read(run)
    assert kept.indices.tolist() == gallery.disputed(run.outputs()).tolist()
    assert len(kept.indices) == 60
    assert np.array_equal(kept.pixels, pixels[kept.indices])
    before = (tmp_path / "gallery.safetensors").read_bytes()
    gallery.keep(run, pixels.__getitem__)
    assert (tmp_path / "gallery.safetensors").read_bytes() == before


def test_images_in_files_are_decoded_in_the_middle(tmp_path, probabilities):
    run = run_of(tmp_path, probabilities[:, :20])
    pixels = np.random.default_rng(1).integers(0, 256, (20, tiny.SIZE, tiny.SIZE, 3), np.uint8)
    gallery.keep(run, lambda indices: tiny.Files(pixels).crops(indices, None))
    kept = gallery.read(run)
    assert np.array_equal(kept.pixels, pixels[kept.indices])


@pytest.mark.parametrize(
    ("height", "width", "block"), [(96, 96, 1), (97, 40, 2), (224, 224, 3), (200, 1, 1), (300, 2, 2)]
)
def test_large_images_are_means_of_blocks(tmp_path, probabilities, height, width, block):
    run = run_of(tmp_path, probabilities[:, :5])
    pixels = np.random.default_rng(1).integers(0, 256, (5, height, width, 3), np.uint8)
    gallery.keep(run, pixels.__getitem__)
    kept = gallery.read(run)
    assert kept.pixels.shape == (5, height // block, width // block, 3)
    for row, column in ((0, 0), (height // block - 1, width // block - 1)):
        area = pixels[kept.indices[0], row * block : (row + 1) * block, column * block : (column + 1) * block]
        assert kept.pixels[0, row, column].tolist() == np.round(area.astype(float).mean((0, 1))).tolist()


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"indices": torch.zeros(2, dtype=torch.int64)},
        {"indices": torch.zeros(2, dtype=torch.int64), "pixels": torch.zeros(3, 4, 4, 1, dtype=torch.uint8)},
        {"indices": torch.zeros(2), "pixels": torch.zeros(2, 4, 4, 1, dtype=torch.uint8)},
        {"indices": torch.zeros(2, dtype=torch.int64), "pixels": torch.zeros(2, 4, 4, 1)},
        {"indices": torch.zeros(2, dtype=torch.int64), "pixels": torch.zeros(2, 0, 4, 1, dtype=torch.uint8)},
        {"indices": torch.zeros(2, dtype=torch.int64), "pixels": torch.zeros(2, 4, 4, dtype=torch.uint8)},
    ],
)
def test_a_file_that_is_no_gallery_is_named(tmp_path, tensors):
    durable.publish(tmp_path / "gallery.safetensors", tensorfile.encode(tensors))
    with pytest.raises(DamagedError, match=r"gallery.safetensors must hold indices, and uint8 pixels for each, got"):
        gallery.read(Run(tmp_path))


def test_a_full_disk_is_told(tmp_path, probabilities, monkeypatch):
    run = run_of(tmp_path, probabilities[:, :5])

    def full(path, chunks):
        raise OSError("no space left")

    monkeypatch.setattr(durable, "publish", full)
    with pytest.raises(StoreError, match=r"gallery.safetensors could not be written \(no space left\); .*: make room"):
        gallery.keep(run, np.zeros((5, 4, 4, 1), np.uint8).__getitem__)
