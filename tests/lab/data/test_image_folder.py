import json
from pathlib import Path

import formats
import numpy as np
import pytest

from snapens.errors import DataError, MissingDataError, SnapensError
from snapens.lab.data import load
from snapens.lab.data.files import PhotoFiles

PIXELS = formats.noise(20, size=40)


def written(parent, pixels=PIXELS, names=("cat", "dog")):
    """Write images of each class as parent/CLASS/NN.png; return their paths."""
    paths = []
    for name, images in zip(names, np.split(pixels, len(names)), strict=True):
        for number, image in enumerate(images):
            paths.append(parent / name / f"{number:02}.png")
            formats.png(paths[-1], image)
    return paths


def test_small_images_with_a_test_set_are_arrays(tmp_path):
    written(tmp_path / "train")
    written(tmp_path / "test", PIXELS[::-1])
    data = load("folder", tmp_path)
    np.testing.assert_array_equal(data.train.pixels, PIXELS)
    np.testing.assert_array_equal(data.test.pixels, PIXELS[::-1])
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0] * 10 + [1] * 10
    assert data.classes == ("cat", "dog")
    assert (data.name, data.size, data.augmentation, data.mean) == (tmp_path.name, 40, "crop-mirror", None)
    assert data.held_out is None


def test_val_is_tested_on_or_held_out_if_there_is_a_test_set(tmp_path):
    written(tmp_path / "train")
    written(tmp_path / "val", PIXELS[:4])
    np.testing.assert_array_equal(load("folder", tmp_path).test.pixels, PIXELS[:4])
    written(tmp_path / "test", PIXELS[4:8])
    data = load("folder", tmp_path)
    np.testing.assert_array_equal(data.test.pixels, PIXELS[4:8])
    np.testing.assert_array_equal(data.held_out.pixels, PIXELS[:4])


@pytest.mark.parametrize("inside", ["", "train"])
def test_without_a_test_set_some_images_of_each_class_become_one_and_are_recorded(tmp_path, inside):
    paths = written(tmp_path / inside)
    data = load("folder", tmp_path)
    assert set(data.test.labels) == set(data.train.labels) == {0, 1}
    record = json.loads((tmp_path / "snapens-split.json").read_text())
    chosen = [paths.index(tmp_path / name) for name in record["test"]]
    np.testing.assert_array_equal(data.test.pixels, PIXELS[chosen])
    np.testing.assert_array_equal(data.train.pixels, np.delete(PIXELS, chosen, axis=0))
    np.testing.assert_array_equal(load("folder", tmp_path).test.pixels, data.test.pixels)


def test_the_split_is_recorded_only_after_all_images_were_checked(tmp_path):
    paths = written(tmp_path)
    data = load("folder", tmp_path)
    (tmp_path / "snapens-split.json").unlink()
    damage(tmp_path / data.test.name(0))
    with pytest.raises(DataError, match="replace or remove it"):
        load("folder", tmp_path)
    (tmp_path / data.test.name(0)).unlink()
    assert len(load("folder", tmp_path).train) + len(load("folder", tmp_path).test) == len(paths) - 1


def test_a_class_may_be_called_train(tmp_path):
    written(tmp_path, names=("car", "train"))
    assert load("folder", tmp_path).classes == ("car", "train")


@pytest.mark.parametrize("odd", [(65, 65), (40, 41), (20, 20), (1000, 999)])
def test_images_that_are_large_or_have_several_sizes_are_files(tmp_path, caplog, odd):
    written(tmp_path, formats.noise(20, size=65) if odd == (65, 65) else PIXELS)
    formats.png(tmp_path / "cat/00.png", np.full((*odd, 3), 7, np.uint8))
    data = load("folder", tmp_path)
    assert isinstance(data.train.pixels, PhotoFiles)
    assert (data.size, data.augmentation) == (224, "imagenet")
    assert data.normalisation()[0] == (123.675, 116.28, 103.53)
    first = data.train.names.index("cat/00.png")
    assert (data.train.pixels.crops(np.array([first]), None) == 7).all()
    sizes = {(40, 41): "41 × 40", (20, 20): "20 × 20", (1000, 999): "999 × 1000"}
    assert ("resized" in caplog.text) is (odd in sizes)
    if odd in sizes:
        assert "all images are resized to 224 × 224, because only squares of one size up to 64 × 64" in caplog.text
        assert f"got 40 × 40 (19 images), {sizes[odd]} (1 image); resize or remove the" in caplog.text
        assert "exceptions: cat/00.png\n" in caplog.text


def test_hidden_and_other_files_are_ignored_and_links_are_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    written(elsewhere)
    root = tmp_path / "root"
    root.mkdir()
    (root / "cat").symlink_to(elsewhere / "cat")
    (root / "dog").mkdir()
    for number in range(3):
        (root / f"dog/{number}.PNG").symlink_to(elsewhere / f"dog/0{number}.png")
    (root / ".cache").mkdir()
    (root / "dog/.hidden.png").write_bytes(b"no image")
    (root / "dog/notes.txt").write_text("no image")
    (root / "README.md").write_text("no image")
    data = load("folder", root)
    assert data.classes == ("cat", "dog")
    assert len(data.train) + len(data.test) == 13


def damage(path):
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: damage(root / "dog/03.png"), r"replace or remove it\n  .*dog/03.png: "),
        (
            lambda root: [path.unlink() for path in (root / "dog").iterdir()],
            "dog must hold the images of a class, got none: add images, or move the folder elsewhere",
        ),
        (lambda root: (root / "dog").rename(root / ".dog"), r"for each of at least 2 classes, got \['cat'\]"),
        (lambda root: written(root / "train", names=("only",)), r"train must have .* got \['only'\]"),
    ],
)
def test_a_folder_that_cannot_be_trained_on_is_rejected(tmp_path, change, message):
    written(tmp_path)
    change(tmp_path)
    with pytest.raises(DataError, match=message):
        load("folder", tmp_path)


def test_the_test_set_must_have_the_classes_of_the_training_set(tmp_path):
    written(tmp_path / "train")
    written(tmp_path / "test", names=("cat", "hen"))
    with pytest.raises(DataError, match=r"test must have the classes of the training images only, got also \['hen'\]"):
        load("folder", tmp_path)


def test_a_missing_or_empty_folder_is_rejected(tmp_path):
    with pytest.raises(MissingDataError, match=r"data must be a folder of images .*nowhere: check the path"):
        load("folder", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"at least 2 classes, got \[\]"):
        load("folder", tmp_path)
    written(tmp_path, PIXELS[:2])
    with pytest.raises(SnapensError, match="must hold at least 2 images to split off a test set, got 1"):
        load("folder", tmp_path)


def test_a_folder_of_another_depth_is_rejected_with_the_folder_to_pass(tmp_path):
    written(tmp_path / "images")
    with pytest.raises(
        DataError, match=rf"got \['images'\]: pass {tmp_path}/images if its sub-folders are the classes$"
    ):
        load("folder", tmp_path)
    (tmp_path / "more").mkdir()
    with pytest.raises(DataError, match=rf"elsewhere; pass {tmp_path}/images if its sub-folders are the classes$"):
        load("folder", tmp_path)
    with pytest.raises(
        DataError, match=r"got \[\]: if this folder holds the images of one class, pass the folder above it"
    ):
        load("folder", tmp_path / "images/dog")


@pytest.mark.parametrize("inside", ["", "train"])
def test_images_of_your_own_for_a_public_data_set_are_rejected_with_the_data_set_to_choose(tmp_path, inside):
    written(tmp_path / inside)
    with pytest.raises(MissingDataError, match=rf"{tmp_path} looks like your own data: use --dataset folder$"):
        load("cifar100", tmp_path)
    np.savez(tmp_path / "mine.npz", x_train=np.zeros(1))
    with pytest.raises(MissingDataError, match=r"mine.npz looks like your own data: use --dataset arrays$"):
        load("cifar100", tmp_path / "mine.npz")


def test_public_files_are_missing_in_a_folder_that_cannot_be_listed_too(tmp_path, monkeypatch):
    def reject(path):
        raise PermissionError(path)

    written(tmp_path)
    monkeypatch.setattr(Path, "iterdir", reject)
    with pytest.raises(
        MissingDataError, match=r"data must be a folder that holds .*cifar-100-binary.* --download does$"
    ):
        load("cifar100", tmp_path)


def test_run_folders_are_not_classes_and_a_warning_says_so(tmp_path, caplog):
    written(tmp_path)
    for name, mark in (("a-run", "manifest.json"), ("b-run", "recipe.json"), ("runs/c", "recipe.json")):
        (tmp_path / name / "snapshots").mkdir(parents=True)
        (tmp_path / name / mark).write_text("{}")
    (tmp_path / "dog/manifest.json").write_text("{}")  # from another program: this folder holds images
    assert load("folder", tmp_path).classes == ("cat", "dog")
    for name in ("a-run", "b-run", "runs"):
        assert caplog.text.count(f"{name} is ignored, because it holds a run and no images of a class: move it") == 1
    assert "dog" not in caplog.text


def test_all_broken_images_are_counted_and_ten_are_listed(tmp_path):
    written(tmp_path)
    for path in sorted(tmp_path.rglob("*.png"))[:12]:
        damage(path)
    with pytest.raises(DataError, match="got 12 that cannot be used: replace or remove them\n") as caught:
        load("folder", tmp_path)
    _, *listed, more = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in listed] == [f"  {tmp_path}/cat/{number:02}.png" for number in range(10)]
    assert more == "  and 2 more"


@pytest.mark.parametrize(
    ("limit", "reason"),  # Pillow warns above its limit and raises above twice its limit
    [(70, "10 × 10 pixels where at most 70 are allowed"), (30, "DecompressionBombError: Image size .100 ")],
)
def test_an_image_with_too_many_pixels_is_an_error_of_ours(tmp_path, monkeypatch, recwarn, limit, reason):
    written(tmp_path, formats.noise(20, size=5))
    formats.png(tmp_path / "cat/00.png", formats.noise(1, size=10)[0])
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", limit)
    with pytest.raises(DataError, match=rf"got 1 that cannot be used: .*\n  .*cat/00.png: {reason}"):
        load("folder", tmp_path)
    assert not recwarn.list


def test_images_of_files_have_names_relative_to_the_root(tmp_path):
    written(tmp_path / "small/train")
    written(tmp_path / "small/test", PIXELS[:2])
    written(tmp_path / "large", formats.noise(20, size=70))
    small, large = (load("folder", tmp_path / name) for name in ("small", "large"))
    assert [small.test.name(index) for index in range(2)] == ["test/cat/00.png", "test/dog/00.png"]
    assert small.train.name(11) == "train/dog/01.png"
    held = large.hold_out(6, seed=0)
    for images in (large.train, large.test, held.train, held.held_out):
        for index, label in enumerate(images.labels):
            path = tmp_path / "large" / images.name(index)
            assert path.parent.name == ("cat", "dog")[label]
            np.testing.assert_array_equal(
                images.central(np.array([index]))[0], PhotoFiles(path.parent, [path.name]).crops(np.array([0]), None)[0]
            )


def test_other_photos_under_the_same_names_are_described_differently(tmp_path):
    for name, seed in (("a", 0), ("same", 0), ("other", 1)):
        written(tmp_path / name, formats.noise(20, size=70, seed=seed))
    first, same, other = (load("folder", tmp_path / name).described() for name in ("a", "same", "other"))
    assert first == same
    assert {key for key in first if first[key] != other[key]} == {"images"}


def test_imagenet_is_read_from_its_folders(tmp_path):
    written(tmp_path / "imagenet/train", names=("n02", "n01"))
    written(tmp_path / "imagenet/val", PIXELS[:2], names=("n01", "n02"))
    for root in (tmp_path, tmp_path / "imagenet"):
        data = load("imagenet", root)
        assert data.classes == ("n01", "n02")
        assert (data.name, data.size, data.augmentation) == ("imagenet", 224, "imagenet")
        assert len(data.train) == 20
        assert data.test.labels.tolist() == [0, 1]
        assert data.test.pixels.crops(np.array([1, 0]), None).shape == (2, 224, 224, 3)
        assert data.normalisation() == ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
        assert len(data.hold_out(5, seed=0).held_out.pixels) == 5
        assert (data.train.name(10), data.test.name(0)) == ("train/n02/00.png", "val/n01/00.png")


def test_imagenet_without_sorted_validation_images_is_missing(tmp_path):
    written(tmp_path / "train")
    (tmp_path / "val").mkdir()
    with pytest.raises(MissingDataError, match=r"train/WNID/\*.JPEG and val/WNID/\*.JPEG"):
        load("imagenet", tmp_path)
