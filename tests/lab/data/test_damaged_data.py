"""Files with flipped bits, or cut off: a data reader gives data, or an error of ours that names the file or folder."""

import random
import shutil

import formats
import numpy as np
import pytest

from snapens.errors import SnapensError
from snapens.lab.data import glyphs, load
from snapens.lab.data.archives import unpack
from snapens.lab.data.pickles import read

trusted = formats.trusted
COLOURS, LABELS = formats.noise(10, seed=1), np.arange(10) % 2
NUMBERS = np.random.default_rng(2).normal(size=(10, 3))


def cifar(root, pickled):
    inside, names = formats.cifar10(root, COLOURS, LABELS, COLOURS[:2], LABELS[:2], pickled), [*"0123456789"]
    if pickled:
        (inside / "batches.meta").write_bytes(formats.pickled_by_python_2({"label_names": names}))
    else:
        (inside / "batches.meta.txt").write_text("\n".join(names))


def pickle(root):
    content = {"data": formats.planes(COLOURS), "labels": LABELS.tolist(), "names": ["a", "b"]}
    (root / "batch").write_bytes(formats.pickled_by_python_2(content))


def svhn(root):
    for name in ("train_32x32.mat", "test_32x32.mat"):
        formats.svhn(root / name, COLOURS, LABELS)


def tiny(root):
    formats.tinyimagenet(root, formats.smooth(4, seed=1), formats.smooth(2, seed=2))
    load("tinyimagenet", root)  # writes the cache


def folder(root):
    for name in "ab":
        formats.jpeg(root / name / "1.jpg", COLOURS[0])
        formats.png(root / name / "2.png", COLOURS[1])
    load("folder", root)  # writes the split


def npz(root, x_train):
    np.savez_compressed(root / "mine.npz", x_train=x_train, y_train=LABELS, classes=np.array(["a", "b"]))


def archive(root, name, write):
    (root / "set").mkdir()
    (root / "set/a.bin").write_bytes(NUMBERS.tobytes())
    write(root / name, of=root / "set")
    shutil.rmtree(root / "set")


READERS = {
    "CIFAR, binary": ("*/*", lambda root: cifar(root, False), lambda root: load("cifar10", root)),
    "CIFAR, Python": ("*/*", lambda root: cifar(root, True), lambda root: load("cifar10", root)),
    "pickle": ("batch", pickle, lambda root: read(root / "batch")),
    "SVHN": ("*.mat", svhn, lambda root: load("svhn", root)),
    "Tiny ImageNet": ("*/**/*", tiny, lambda root: load("tinyimagenet", root)),
    "Tiny ImageNet's cache": ("*.npy", tiny, lambda root: load("tinyimagenet", root)),
    "folder": ("**/*", folder, lambda root: load("folder", root)),
    "npz of images": ("*.npz", lambda root: npz(root, COLOURS), lambda root: load("arrays", root / "mine.npz")),
    "npz of a table": ("*.npz", lambda root: npz(root, NUMBERS), lambda root: load("arrays", root / "mine.npz")),
    "atlas": ("*.npz", lambda root: shutil.copy(glyphs._ATLAS, root), lambda root: glyphs.draw("train", 1)),
    "tar": (
        "*.gz",
        lambda root: archive(root, "a.tar.gz", formats.tar),
        lambda root: shutil.rmtree(unpack(root / "a.tar.gz", "set")),
    ),
    "zip": (
        "*.zip",
        lambda root: archive(root, "a.zip", formats.zipped),
        lambda root: shutil.rmtree(unpack(root / "a.zip", "set")),
    ),
}


def damaged(content, chance):
    """Cut off, or with up to ten flipped bits, half of the time near the ends, where formats have their headers."""
    if chance.random() < 0.25:
        return content[: chance.randrange(len(content))]
    flipped, near = bytearray(content), chance.choice([300, len(content)])
    for _ in range(chance.choice([1, 1, 3, 10])):
        place = chance.randrange(min(near, len(content)))
        flipped[place if chance.random() < 0.5 else -1 - place] ^= 1 << chance.randrange(8)
    return bytes(flipped)


@pytest.mark.parametrize("count", [30, pytest.param(3000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_give_data_or_an_error_of_ours(tmp_path, monkeypatch, trusted, name, count):
    pattern, write, use = READERS[name]
    write(tmp_path)
    monkeypatch.setattr(glyphs, "_ATLAS", tmp_path / "glyphs.npz")
    whole = {
        path: trusted(path).read_bytes()
        for path in sorted(tmp_path.glob(pattern))
        if path.is_file() and path.stat().st_size
    }
    rejected = []
    for seed in range(count):
        chance = random.Random(seed)
        path = chance.choice([*whole])
        path.write_bytes(damaged(whole[path], chance))
        if name in ("tar", "zip"):
            trusted(path)  # otherwise the MD5 alone would reject each of them
        try:
            use(tmp_path)
        except SnapensError as error:
            rejected.append((path, str(error)))
        path.write_bytes(whole[path])
    assert not [message for path, message in rejected if path.name not in message and str(tmp_path) not in message]
    assert bool(rejected) == (name != "Tiny ImageNet's cache")  # which is made again
