import json

import formats
import numpy as np
import pytest

from snapens.errors import DataError, MissingDataError, SnapensError
from snapens.lab.data import folder, load
from snapens.lab.data.files import PhotoFiles

PIXELS = formats.noise(20, size=40)


def written(parent, pixels=PIXELS, names=("cat", "dog")):
    """Images of each class in turn, as parent/CLASS/NN.png; where each lies."""
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


def test_val_is_tested_on_or_beside_a_test_set_held_out(tmp_path):
    written(tmp_path / "train")
    written(tmp_path / "val", PIXELS[:4])
    np.testing.assert_array_equal(load("folder", tmp_path).test.pixels, PIXELS[:4])
    written(tmp_path / "test", PIXELS[4:8])
    data = load("folder", tmp_path)
    np.testing.assert_array_equal(data.test.pixels, PIXELS[4:8])
    np.testing.assert_array_equal(data.held_out.pixels, PIXELS[:4])


@pytest.mark.parametrize("inside", ["", "train"])
def test_without_a_test_set_some_of_each_class_are_one_and_are_written_down(tmp_path, inside):
    paths = written(tmp_path / inside)
    data = load("folder", tmp_path)
    assert set(data.test.labels) == set(data.train.labels) == {0, 1}
    record = json.loads((tmp_path / "snapens-split.json").read_text())
    chosen = [paths.index(tmp_path / name) for name in record["test"]]
    np.testing.assert_array_equal(data.test.pixels, PIXELS[chosen])
    np.testing.assert_array_equal(data.train.pixels, np.delete(PIXELS, chosen, axis=0))
    np.testing.assert_array_equal(load("folder", tmp_path).test.pixels, data.test.pixels)


def test_the_test_set_is_a_tenth_and_images_added_later_leave_the_others_where_they_are(tmp_path):
    paths = [tmp_path / name / f"{k}.png" for name in ("cat", "dog") for k in range(1000)]
    labels = np.repeat([0, 1], 1000)
    whole = set(folder._split(tmp_path, (paths, labels))["test"][0])
    assert 150 < len(whole) < 250
    fewer = folder._split(tmp_path, (paths[::2], labels[::2]))
    assert set(fewer["test"][0]) == whole & set(paths[::2])
    assert set(fewer["train"][0]) == set(paths[::2]) - whole


def test_a_folder_that_cannot_be_written_to_is_split_the_same(tmp_path, monkeypatch):
    def refuse(path, chunks):
        raise PermissionError(path)

    written(tmp_path)
    expected = load("folder", tmp_path).test.pixels
    (tmp_path / "snapens-split.json").unlink()
    monkeypatch.setattr(folder, "publish", refuse)
    np.testing.assert_array_equal(load("folder", tmp_path).test.pixels, expected)
    assert not (tmp_path / "snapens-split.json").exists()


def test_a_class_may_be_called_train(tmp_path):
    written(tmp_path, names=("car", "train"))
    assert load("folder", tmp_path).classes == ("car", "train")


@pytest.mark.parametrize("odd", [(65, 65), (40, 41), (20, 20)])
def test_images_that_are_large_or_of_several_sizes_are_files(tmp_path, caplog, odd):
    written(tmp_path, formats.noise(20, size=65) if odd == (65, 65) else PIXELS)
    formats.png(tmp_path / "cat/00.png", np.full((*odd, 3), 7, np.uint8))
    data = load("folder", tmp_path)
    assert isinstance(data.train.pixels, PhotoFiles)
    assert (data.size, data.augmentation) == (224, "imagenet")
    assert data.normalisation()[0] == (123.675, 116.28, 103.53)
    first = data.train.pixels.paths.index(tmp_path / "cat/00.png")
    assert (data.train.pixels.crops(np.array([first]), None) == 7).all()
    sizes = {(40, 41): "40 × 40, 41 × 40", (20, 20): "20 × 20, 40 × 40"}
    assert ("enlarged" in caplog.text) is (odd in sizes)
    assert f"images of {sizes.get(odd, '')} are enlarged to 224 × 224" in caplog.text or odd not in sizes


def test_hidden_and_other_files_are_passed_over_and_links_followed(tmp_path):
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
        (lambda root: damage(root / "dog/03.png"), r"dog/03.png must be a whole image"),
        (lambda root: [path.unlink() for path in (root / "dog").iterdir()], "dog must hold images of its class"),
        (lambda root: (root / "dog").rename(root / ".dog"), r"for each of at least 2 classes, got \['cat'\]"),
        (lambda root: written(root / "train", names=("only",)), r"train must have .* got \['only'\]"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path, change, message):
    written(tmp_path)
    change(tmp_path)
    with pytest.raises(DataError, match=message):
        load("folder", tmp_path)


def test_test_classes_must_be_those_of_training(tmp_path):
    written(tmp_path / "train")
    written(tmp_path / "test", names=("cat", "hen"))
    with pytest.raises(DataError, match=r"test must have the classes of the training images only, got also \['hen'\]"):
        load("folder", tmp_path)


def test_no_folder_or_an_empty_one_is_refused(tmp_path):
    with pytest.raises(MissingDataError, match=r"data must be a folder of images .*nowhere: check the path"):
        load("folder", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"at least 2 classes, got \[\]"):
        load("folder", tmp_path)
    written(tmp_path, PIXELS[:2])
    with pytest.raises(SnapensError, match="must hold at least 2 images to split off a test set, got 1"):
        load("folder", tmp_path)


def test_imagenet_is_read_by_its_folders(tmp_path):
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


def test_imagenet_without_sorted_validation_images_is_missing(tmp_path):
    written(tmp_path / "train")
    (tmp_path / "val").mkdir()
    with pytest.raises(MissingDataError, match=r"train/WNID/\*.JPEG and val/WNID/\*.JPEG"):
        load("imagenet", tmp_path)
