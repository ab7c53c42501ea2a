import subprocess
import sys

import pytest

from snapens.errors import ArgumentError, SnapensError
from snapens.lab.data import DATASETS, load
from snapens.lab.data.sources import cache_folder


def test_every_name_of_the_recipes_is_there():
    names = "arrays cifar10 cifar100 folder glyphs imagenet svhn svhn-extra tinyimagenet"
    assert sorted(DATASETS) == names.split()


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ArgumentError, match="dataset must be a known one, got 'cifar-100': did you mean cifar100"):
        load("cifar-100", None)


@pytest.mark.parametrize("name", ["arrays", "folder", "imagenet"])
def test_ones_own_data_must_be_named(name):
    with pytest.raises(
        ArgumentError, match=r"data must be an? .*, got none: name it by --data or the variable SNAPENS"
    ):
        load(name, None, download=True)


def test_glyphs_need_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load("glyphs", None).name == "glyphs"


def test_the_cache_folder_is_where_the_system_wants_it(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(cache_folder()) == "/somewhere/snapens"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(cache_folder()) == "/home/ada/.cache/snapens"


def test_without_scipy_the_extra_is_named(tmp_path, monkeypatch):
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(SnapensError, match=r'scipy must be installed for this: pip install "snapens\[data\]"'):
        load("svhn", tmp_path)


def test_the_names_are_known_without_torch_or_anything_that_an_extra_brings():
    code = (
        "import sys; from snapens.lab.data import DATASETS; assert DATASETS; "
        "assert not {'torch', 'PIL', 'scipy', 'simplejpeg', 'urllib.request'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
