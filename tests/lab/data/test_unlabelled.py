"""Examples without labels, from image files and tables."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from snapens.errors import ArgumentError, MissingPackageError
from snapens.lab.data import unlabelled
from snapens.lab.data.files import PhotoFiles
from snapens.lab.recipe.preprocessing import ImagePreprocessing, RowPreprocessing

SMALL = ImagePreprocessing((0.0,) * 3, (255.0,) * 3, size=8)
GREY = ImagePreprocessing((0.0,), (255.0,), size=8)
PHOTOS = ImagePreprocessing((0.0,) * 3, (255.0,) * 3, size=16, crop=7 / 8)
ROWS = RowPreprocessing((0.0,) * 3, (1.0,) * 3)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def chunks(paths, preprocessing, size=10):
    return list(unlabelled.chunks(unlabelled.listed(paths, preprocessing), preprocessing, size))


def test_images_of_the_right_size_are_used_as_they_are_in_chunks_and_in_order(tmp_path):
    for k in range(5):
        Image.fromarray(noise(8, 8, k)).save(tmp_path / f"{k}.png")
    found = chunks([tmp_path], SMALL, size=2)
    assert [len(chunk.names) for chunk in found] == [2, 2, 1]
    assert [name for chunk in found for name in chunk.names] == [str(tmp_path / f"{k}.png") for k in range(5)]
    pixels = np.stack([example for chunk in found for example in chunk.examples])
    assert np.array_equal(pixels, np.stack([noise(8, 8, k) for k in range(5)]))


def test_other_sizes_are_cropped_to_their_central_square_and_resized(tmp_path):
    Image.fromarray(noise(20, 40)).save(tmp_path / "a.png")
    (chunk,) = chunks([tmp_path / "a.png"], SMALL)
    expected = Image.fromarray(noise(20, 40)).resize((8, 8), Image.Resampling.BILINEAR, box=(10, 0, 30, 20))
    assert np.array_equal(chunk.examples[0], np.array(expected))
    assert chunk.sizes == [(40, 20)]


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_photos_are_read_as_in_an_evaluation(tmp_path, name):
    Image.fromarray(noise(90, 120)).save(tmp_path / name)
    (chunk,) = chunks([tmp_path / name], PHOTOS)
    expected = PhotoFiles(tmp_path, [name], size=16).crops(np.array([0]), None)
    assert np.array_equal(chunk.examples[0], expected[0])


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_images_become_grey_if_the_run_has_one_channel(tmp_path, mode):
    grey = noise(8, 8)[..., 0]
    Image.fromarray(grey).convert(mode).save(tmp_path / "a.png")
    (chunk,) = chunks([tmp_path / "a.png"], GREY)
    assert np.array_equal(chunk.examples[0], grey[..., None])


def test_folders_are_searched_at_any_depth_without_hidden_and_other_files(tmp_path):
    (tmp_path / "b/c").mkdir(parents=True)
    (tmp_path / "b/.thumbnails").mkdir()
    for name in ("z.png", "b/c/a.JPG", "b/.hidden.png", "b/.thumbnails/a.png", "b/notes.txt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "b/folder.png").mkdir()
    other = tmp_path / "b/notes.txt"  # named by the user
    found = unlabelled.listed([tmp_path, other], SMALL)
    assert found == [tmp_path / "b/c/a.JPG", tmp_path / "z.png", other]


@pytest.mark.parametrize(
    ("preprocessing", "message"),
    [
        (SMALL, "files must be images or folders that contain some, got .*, which contains none"),
        (ROWS, r"files must be .csv or .npz files or folders that contain some, got .*, which contains none"),
    ],
)
def test_a_folder_without_examples_is_rejected(tmp_path, preprocessing, message):
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(ArgumentError, match=message):
        unlabelled.listed([tmp_path], preprocessing)


def test_at_least_one_file_is_required():
    with pytest.raises(ArgumentError, match="files must name at least one file or folder, got none"):
        unlabelled.listed([], SMALL)


def test_images_that_cannot_be_used_are_named_and_the_others_are_read(tmp_path, monkeypatch):
    Image.fromarray(noise(8, 8)).save(tmp_path / "good.png")
    Image.fromarray(noise(40, 40)).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:-500])
    (tmp_path / "text.png").write_bytes(b"hello")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "deep.png")
    Image.fromarray(noise(50, 50)).save(tmp_path / "huge.png")
    os.mkfifo(tmp_path / "pipe.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50 * 50 - 1)
    names = ["good.png", "cut.png", "text.png", "deep.png", "huge.png", "pipe.png", "gone.png"]
    (chunk,) = chunks([tmp_path / name for name in names], SMALL)
    assert chunk.names == [str(tmp_path / "good.png")]
    reasons = {Path(name).name: reason for name, reason in chunk.failed.items()}
    assert reasons.pop("cut.png").startswith("OSError: image file is truncated")
    assert reasons.pop("deep.png").endswith("where 8 bits per channel are required")
    assert reasons.pop("pipe.png").startswith("must be a regular file")
    assert reasons == {
        "text.png": "not an image of a known format",
        "huge.png": "50 × 50 pixels where at most 2,499 are allowed",
        "gone.png": "No such file or directory",
    }


def test_an_image_file_cannot_have_the_channels_of_other_arrays(tmp_path):
    Image.fromarray(noise(8, 8)).save(tmp_path / "a.png")
    (chunk,) = chunks([tmp_path / "a.png"], ImagePreprocessing((0.0,) * 4, (1.0,) * 4, size=8))
    assert list(chunk.failed.values()) == ["an image file where examples with 4 channels are required"]


def test_without_pillow_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    def missing(module, extra):
        raise MissingPackageError("pillow must be installed for this")

    monkeypatch.setattr(unlabelled, "package", missing)
    with pytest.raises(MissingPackageError, match="must be installed"):
        list(unlabelled.chunks([tmp_path / "a.png"], SMALL, 4))


# tables


def test_the_rows_of_csv_files_are_read_with_or_without_a_header(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfx,y,z\r\n1,2,3\r\n\r\n4,5,6e1\r\n")
    (tmp_path / "b.csv").write_text('7,"8",9\n')
    first, second = chunks([tmp_path], ROWS)
    assert [example.tolist() for example in first.examples] == [[1, 2, 3], [4, 5, 60]]
    assert first.names == [f"{tmp_path}/a.csv:2", f"{tmp_path}/a.csv:4"]
    assert second.examples[0].tolist() == [7, 8, 9]
    assert first.sizes == []


def test_a_first_row_with_a_missing_number_is_named_and_not_taken_for_a_header(tmp_path):
    (tmp_path / "a.csv").write_text("1,,3\n4,5,6\n")
    (chunk,) = chunks([tmp_path / "a.csv"], ROWS)
    assert [example.tolist() for example in chunk.examples] == [[4, 5, 6]]
    assert chunk.failed == {f"{tmp_path}/a.csv:1": "column 2 must be a number, got ''"}


@pytest.mark.parametrize(
    "arrays", [{"x": np.arange(6).reshape(2, 3), "y": np.zeros(2)}, {"a": np.arange(6.0).reshape(2, 3)}]
)
def test_the_rows_of_an_npz_file_are_those_of_x_or_of_its_only_array(tmp_path, arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    first, second = chunks([tmp_path / "a.npz"], ROWS, size=1)
    assert first.examples[0].tolist() == [0, 1, 2]
    assert second.names == [f"{tmp_path}/a.npz[1]"]


def test_rows_that_cannot_be_used_are_named_and_the_others_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("1,2,3\n1,2\n1,2,none\n1,nan,3\n1,2,1e31\n4,5,6\n1,2,3,4,5,6\n")
    (chunk,) = chunks([tmp_path / "a.csv"], ROWS)
    assert [example.tolist() for example in chunk.examples] == [[1, 2, 3], [4, 5, 6]]
    assert chunk.failed == {
        f"{tmp_path}/a.csv:2": "3 numbers are required, got 2 (1, 2)",
        f"{tmp_path}/a.csv:3": "column 3 must be a number, got 'none'",
        f"{tmp_path}/a.csv:4": "column 2 must be a number below 1e+30, got 'nan'",
        f"{tmp_path}/a.csv:5": "column 3 must be a number below 1e+30, got '1e31'",
        f"{tmp_path}/a.csv:7": "3 numbers are required, got 6 (1, 2, 3, 4, 5, …)",
    }


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", b"1,2\n3,4\n", "must have rows of 3 numbers, got rows of 2"),
        ("a.csv", b"1,2\n3,4,5,6\n", "must have rows of 3 numbers, got rows of 2, 4"),
        ("a.csv", b"", "must have rows of 3 numbers, got no rows"),
        ("a.csv", b"\xff\xfe1", "must be a .csv file in UTF-8, got UnicodeDecodeError"),
        ("a.csv", b'1,"2,3\n', "must be a .csv file in UTF-8, got Error: unexpected end of data"),
        ("a.npz", b"hello", "must be an .npz file without pickled objects, got"),
        ("a.txt", b"1,2,3\n", "must be one of .csv, .npz, because the run was trained on a table"),
        ("a.csv", None, "No such file or directory"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (chunk,) = chunks([tmp_path / name], ROWS)
    assert chunk.names == []
    assert chunk.failed[str(tmp_path / name)].startswith(reason)


@pytest.mark.parametrize(
    "arrays", [{"a": np.zeros((2, 3)), "b": np.zeros(2)}, {"x": np.zeros(3)}, {"x": np.array([["a"]])}]
)
def test_an_npz_file_without_rows_of_numbers_is_named_with_its_arrays(tmp_path, arrays):
    np.savez(tmp_path / "a.npz", **arrays)
    (chunk,) = chunks([tmp_path / "a.npz"], ROWS)
    (reason,) = chunk.failed.values()
    assert reason.startswith("must contain one array of numbers (rows, features), or one that is named x, got ")
    assert all(f"{name} {array.shape}" in reason for name, array in arrays.items())


def test_pickled_arrays_are_not_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([[object()]], dtype=object))
    (chunk,) = chunks([tmp_path / "a.npz"], ROWS)
    assert "without pickled objects" in chunk.failed[str(tmp_path / "a.npz")]
