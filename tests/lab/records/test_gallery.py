"""The images that a run's members dispute, chosen and kept."""

from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import tiny
import torch

from snapens import quality
from snapens.errors import DamagedError, StoreError
from snapens.lab.engine.pack import prepare, train
from snapens.lab.records import gallery
from snapens.lab.records.run import Run
from snapens.outputs import Outputs
from snapens.storage import durable


def run_of(path, probabilities):
    """A run whose members say this of its test images, (members, examples, classes)."""
    run = Run(path)
    snapshots = run.snapshots
    snapshots.open_to_write()
    labels = torch.zeros(len(probabilities[0]), dtype=torch.int64)
    for step, member in enumerate(probabilities, 1):
        snapshots.commit(step, {"weight": torch.full((2,), float(step))})
        run.add_outputs(step, {"test": (torch.tensor(member).log().half(), labels)})
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


def test_the_most_disputed_come_first_and_ties_by_index(probabilities, monkeypatch):
    monkeypatch.setattr(quality, "_BLOCK_BYTES", 8 * 3 * 4 * 1000)  # blocks of 1,000 examples
    choices = probabilities.argmax(-1)
    differ = np.flatnonzero((choices != choices[0]).any(0))
    first, later = differ[0], differ[-1]
    probabilities[:, later] = probabilities[:, first]
    assert first < 1000 < 2000 < later
    outputs = Outputs(
        (("a", 1), ("a", 2), ("a", 3)), np.log(probabilities).astype(np.float16), np.zeros(2500, np.int64)
    )
    found = gallery.disputed(outputs, count=2500)
    p = np.exp(outputs.log_probabilities.astype(float))
    p /= p.sum(-1, keepdims=True)
    assert np.all(np.diff([information(p[:, index]) for index in found]) <= 1e-12)
    assert sorted(found) == differ.tolist()
    assert found.tolist().index(later) == found.tolist().index(first) + 1


def test_members_that_agree_on_every_image_leave_no_gallery(tmp_path, probabilities):
    run = run_of(tmp_path, np.stack([probabilities[0]] * 3))
    assert gallery.disputed(run.outputs()).tolist() == []
    gallery.keep(run, np.zeros((2500, 4, 4, 1), np.uint8).__getitem__)
    assert gallery.read(run) is None


def test_names_of_files_are_kept_beside_the_images(tmp_path, probabilities):
    run = run_of(tmp_path, probabilities[:, :20])
    pixels = np.zeros((20, 8, 8, 3), np.uint8)
    gallery.keep(run, pixels.__getitem__, lambda index: f"test/ü {index}.png")
    kept = gallery.read(run)
    assert kept.names == tuple(f"test/ü {index}.png" for index in kept.indices)
    gallery.keep(run, pixels.__getitem__, lambda index: None)
    assert gallery.read(run).names is None


def test_what_is_kept_is_read_back(tmp_path, probabilities):
    run = run_of(tmp_path, probabilities)
    assert gallery.read(run) is None
    pixels = np.random.default_rng(1).integers(0, 256, (2500, 8, 8, 3), np.uint8)
    gallery.keep(run, pixels.__getitem__)
    kept = gallery.read(run)
    assert kept.indices.tolist() == gallery.disputed(run.outputs()).tolist()
    assert len(kept.indices) == 60
    assert np.array_equal(kept.pixels, pixels[kept.indices])
    gallery.keep(run, pixels.__getitem__)
    assert np.array_equal(gallery.read(run).pixels, kept.pixels)
    assert len(list(tmp_path.glob("gallery-*.safetensors"))) == 1


def test_a_gallery_that_was_altered_is_rejected(tmp_path, probabilities):
    run = run_of(tmp_path, probabilities[:, :5])
    gallery.keep(run, np.zeros((5, 4, 4, 1), np.uint8).__getitem__)
    (path,) = tmp_path.glob("gallery-*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=r"gallery-.* must have the SHA-256 in gallery\.json, but it was altered"):
        gallery.read(run)


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
    choices = probabilities.argmax(-1)
    run = run_of(tmp_path, probabilities[:, (choices[0] != choices[1])][:, :5])
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
def test_a_file_of_format_1_that_is_no_gallery_is_named(tmp_path, tensors):
    safetensors.torch.save_file(tensors, tmp_path / "gallery.safetensors")  # as format 1 had it
    with pytest.raises(DamagedError, match=r"gallery.safetensors must hold .*: remove it"):
        gallery.read(Run(tmp_path))


def test_a_full_disk_is_told(tmp_path, probabilities, monkeypatch):
    run = run_of(tmp_path, probabilities[:, :5])

    def full(path, chunks):
        raise OSError("no space left")

    monkeypatch.setattr(durable, "publish", full)
    with pytest.raises(
        StoreError, match=r"gallery-.*safetensors could not be written \(no space left\); .*: free disk space"
    ):
        gallery.keep(run, np.zeros((5, 4, 4, 1), np.uint8).__getitem__)


def test_training_keeps_the_names_of_the_files(tmp_path):
    data = tiny.data()
    named = replace(data, test=replace(data.test, names=[f"test/{k}.png" for k in range(20)]))
    train(prepare([(tiny.recipe(), tmp_path / "run")], lambda recipe: named, torch.device("cpu")))
    kept = gallery.read(Run(tmp_path / "run"))
    assert kept.names == tuple(f"test/{index}.png" for index in kept.indices)


def test_a_gallery_names_files_of_its_folder_only(tmp_path, probabilities):
    run = run_of(tmp_path, probabilities[:, :20])
    gallery.keep(run, np.zeros((20, 4, 4, 1), np.uint8).__getitem__)
    tiny.altered(tmp_path / "gallery.json", lambda text: text.replace('"gallery-', '"../gallery-'))
    with pytest.raises(StoreError, match=r"gallery\.json"):
        gallery.read(run)


def test_a_gallery_has_a_name_per_image(tmp_path, probabilities):
    run = run_of(tmp_path, probabilities[:, :20])
    gallery.keep(run, np.zeros((20, 4, 4, 1), np.uint8).__getitem__, lambda index: f"{index}.png")
    count = len(gallery.read(run).indices)
    tiny.altered(tmp_path / "gallery.json", lambda text: text.replace('"names": [', '"names": ["extra.png", '))
    with pytest.raises(StoreError, match=rf"names must be one per index \({count}\), got {count + 1}"):
        gallery.read(run)
