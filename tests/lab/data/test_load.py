import os
import subprocess
import sys

import pytest

from snapens.errors import ArgumentError, MissingDataError, SnapensError
from snapens.lab.data import DATASETS, load
from snapens.lab.data.sources import cache_folder


def test_every_data_set_of_the_recipes_is_known():
    names = "arrays cifar10 cifar100 folder glyphs imagenet svhn svhn-extra tinyimagenet"
    assert sorted(DATASETS) == names.split()


def test_an_unknown_name_is_rejected_with_the_nearest_known_name():
    with pytest.raises(ArgumentError, match="unknown dataset 'cifar-100': did you mean cifar100"):
        load("cifar-100", None)


@pytest.mark.parametrize("name", ["arrays", "folder", "imagenet"])
def test_the_users_own_data_must_be_named(name):
    with pytest.raises(
        ArgumentError, match=r"data must be an? .*, got none: pass it with --data or the variable SNAPENS"
    ):
        load(name, None, download=True)


def test_glyphs_need_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load("glyphs", None).name == "glyphs"


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(cache_folder()) == "/somewhere/snapens"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(cache_folder()) == "/home/ada/.cache/snapens"


def test_a_missing_scipy_is_an_error_that_names_the_extra(tmp_path, monkeypatch):
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(SnapensError, match=r'scipy must be installed for this: pip install .*\[data\]"'):
        load("svhn", tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize(
    ("name", "file", "root"),
    [
        ("arrays", "mine.npz", "mine.npz"),
        ("svhn", "train_32x32.mat", "."),
        ("cifar10", "cifar-10-binary.tar.gz", "."),
        ("tinyimagenet", "tiny-imagenet-200.zip", "."),
    ],
)
def test_a_fifo_in_place_of_a_file_is_an_error_and_not_waited_for(tmp_path, name, file, root):
    os.mkfifo(tmp_path / file)
    with pytest.raises(MissingDataError, match="data must be"):
        load(name, tmp_path / root)


def test_the_names_are_known_without_importing_torch_or_optional_packages():
    code = (
        "import sys; from snapens.lab.data import DATASETS; assert DATASETS; "
        "assert not {'torch', 'PIL', 'scipy', 'simplejpeg', 'urllib.request'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
