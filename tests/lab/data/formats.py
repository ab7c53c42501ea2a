"""Writers of tiny data sets, each in the format of the real files, from pixels that the tests know."""

import hashlib
import io
import struct
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from snapens.lab.data.sources import SOURCES, Source


@pytest.fixture
def trusted(monkeypatch):
    """Makes the content of a file the published one."""

    def trust(path):
        md5, url = hashlib.md5(path.read_bytes()).hexdigest(), "http://nowhere"
        before = SOURCES.get(path.name, Source(url, md5))
        monkeypatch.setitem(SOURCES, path.name, replace(before, md5=md5))
        return path

    return trust


def noise(count, size=32, seed=0):
    """Pixels (count, size, size, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), np.uint8)


def smooth(count, size=64, seed=0):
    """Images of one colour each: JPEG keeps them within 2 of 255."""
    colours = np.random.default_rng(seed).integers(0, 256, (count, 1, 1, 3), np.uint8)
    return np.broadcast_to(colours, (count, size, size, 3)).copy()


def planes(pixels):
    return pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)


def binary(pixels, *labels):
    """Records of CIFAR's binary version: the labels of an image, then its red, green and blue plane."""
    return b"".join(bytes(marks) + row.tobytes() for *marks, row in zip(*labels, planes(pixels), strict=True))


def pickled_by_python_2(content):
    """A pickle of protocol 2 as Python 2 wrote CIFAR's Python version, opcode by opcode."""
    return b"\x80\x02" + _opcodes(content) + b"."


def _opcodes(value):
    if isinstance(value, dict):
        return b"}(" + b"".join(_opcodes(key) + _opcodes(item) for key, item in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_opcodes, value)) + b"t"
    if isinstance(value, str):
        return b"T" + struct.pack("<i", len(value)) + value.encode("latin-1")
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    kind = b"cnumpy\ndtype\n" + _opcodes((value.dtype.str[1:], 0, 1)) + b"R"
    kind += _opcodes((3, "|", None, None, None, -1, -1, 0)) + b"b"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _opcodes((0,)) + _opcodes("b") + b"tR"
    fortran = not value.flags.c_contiguous
    raw = value.tobytes("F" if fortran else "C").decode("latin-1")
    return empty + b"(" + _opcodes(1) + _opcodes(value.shape) + kind + _opcodes(fortran) + _opcodes(raw) + b"tb"


def cifar10(root, pixels, labels, test_pixels, test_labels, pickled=False):
    """Five training batches of equal length and a test batch."""
    folder = root / ("cifar-10-batches-py" if pickled else "cifar-10-batches-bin")
    folder.mkdir(parents=True)
    batches = zip(np.split(pixels, 5), np.split(labels, 5), strict=True)
    named = {f"data_batch_{number}": batch for number, batch in enumerate(batches, 1)}
    for name, (some, marks) in (named | {"test_batch": (test_pixels, test_labels)}).items():
        if pickled:
            content = {"batch_label": name, "labels": marks.tolist(), "data": planes(some)}
            (folder / name).write_bytes(pickled_by_python_2(content))
        else:
            (folder / f"{name}.bin").write_bytes(binary(some, marks))
    return folder


def cifar100(root, pixels, labels, test_pixels, test_labels, pickled=False):
    """A training and a test file; the coarse label is a fifth of the fine one."""
    folder = root / ("cifar-100-python" if pickled else "cifar-100-binary")
    folder.mkdir(parents=True)
    for name, some, marks in (("train", pixels, labels), ("test", test_pixels, test_labels)):
        if pickled:
            content = {"data": planes(some), "coarse_labels": (marks // 5).tolist(), "fine_labels": marks.tolist()}
            (folder / name).write_bytes(pickled_by_python_2(content))
        else:
            (folder / f"{name}.bin").write_bytes(binary(some, marks // 5, marks))
    return folder


def svhn(path, pixels, digits):
    """A MATLAB file like those of SVHN: the images are the last dimension, 0 is written as 10."""
    path.parent.mkdir(parents=True, exist_ok=True)
    marks = np.where(digits == 0, 10, digits).astype(np.uint8)[:, None]
    savemat(path, {"X": pixels.transpose(1, 2, 3, 0), "y": marks}, do_compression=True)


def tinyimagenet(root, pixels, test_pixels, wnids=("n02", "n01"), gray=()):
    """Training images of each class in turn, validation images of alternating classes; those of `gray` are grey."""
    folder = root / "tiny-imagenet-200"
    (folder / "val/images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (folder / "words.txt").write_text("n00\tentity\nn01\tgoldfish, Carassius auratus\nn02\tbullfrog, frog\n")
    for wnid, images in zip(wnids, np.split(pixels, len(wnids)), strict=True):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        for number, image in enumerate(images):
            jpeg(folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", image, gray=number in gray)
    rows = []
    for number, image in enumerate(test_pixels):
        jpeg(folder / "val/images" / f"val_{number}.JPEG", image)
        rows.append(f"val_{number}.JPEG\t{wnids[number % len(wnids)]}\t0\t0\t62\t62\n")
    (folder / "val/val_annotations.txt").write_text("".join(rows))
    return folder


def jpeg(path, pixels, gray=False, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image.convert("L") if gray else image).save(path, "JPEG", quality=95, **options)


def png(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "PNG")


def tar(path, *members, of=None):
    """A .tar.gz of a folder, or of (name, type, content or link)."""
    with tarfile.open(path, "w:gz") as file:
        if of is not None:
            file.add(of, of.name)
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(content)
            else:
                member.linkname = content.decode()
            file.addfile(member, io.BytesIO(content))
    return path


def zipped(path, *members, of=None):
    """A .zip of a folder, or of (ZipInfo or name, content)."""
    with zipfile.ZipFile(path, "w") as file:
        for inside in sorted(of.rglob("*")) if of is not None else ():
            file.write(inside, inside.relative_to(of.parent))
        for name, content in members:
            file.writestr(name, content)
    return path
