"""Code is named as git names it, whether git is asked or the files are read."""

import shutil
import subprocess
from pathlib import Path

import pytest
import tiny
import torch

import snapens
from snapens.lab.engine import pack as engine
from snapens.lab.records import source
from snapens.lab.records.run import Run

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")


def git(folder, *command):
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=false")
    done = subprocess.run(["git", *who, *command], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in a repository, with one commit."""
    folder = tmp_path / "src" / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("one\n")
    (folder / "inner" / "b.py").write_text("two\nlines\n")
    (folder / "page.css").write_text("style")
    (tmp_path / "c.py").write_text("outside")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(source, "_PACKAGE", folder)
    return folder


def now():
    return source.digest.__wrapped__()


def test_the_code_is_that_of_the_whole_package():
    assert Path(snapens.__file__).parent == source._PACKAGE


def test_the_order_of_files_does_not_matter():
    assert source._digest({"a.py": "1", "b.py": "2"}) == source._digest({"b.py": "2", "a.py": "1"})


def test_a_file_has_the_name_that_git_gives_it(package):
    for name in ("a.py", "inner/b.py"):
        assert source._blob(package / name) == git(package, "hash-object", name)


def test_a_commit_is_told_from_every_other(package):
    first = git(package, "rev-parse", "HEAD")
    assert now() == source.digest_at(first) == source.digest_at(first[:7])
    (package / "page.css").write_text("other style")
    (package / "a.py").write_bytes(b"one\r\n")
    assert now() == source.digest_at(first)
    before = now()
    for change in (
        lambda: (package / "a.py").write_text("three\n"),
        lambda: (package / "inner" / "b.py").rename(package / "b.py"),
        lambda: (package / "b.py").unlink(),
        lambda: (package / "new.py").write_text(""),
    ):
        change()
        assert now() not in (before, source.digest_at(first))
        before = now()
    git(package, "add", "-A", ".")
    git(package, "commit", "-qm", "second")
    assert now() == source.digest_at("HEAD") != source.digest_at(first)


def test_what_git_does_not_know_is_not_known(package, tmp_path_factory, monkeypatch):
    assert source.digest_at("0" * 40) is None
    assert source.digest_at("--nonsense") is None
    (package / "untracked").mkdir()
    monkeypatch.setattr(source, "_PACKAGE", package / "untracked")
    assert source.digest_at("HEAD") is None
    monkeypatch.setattr(source, "_PACKAGE", tmp_path_factory.mktemp("elsewhere"))
    assert source.digest_at("HEAD") is None
    monkeypatch.setenv("PATH", "")
    assert source.digest_at("HEAD") is None


def test_an_installed_package_asks_the_repository_that_it_is_used_in(package, tmp_path_factory, monkeypatch):
    known = source.digest_at("HEAD")
    installed = tmp_path_factory.mktemp("site") / package.name
    installed.mkdir()
    monkeypatch.setattr(source, "_PACKAGE", installed)
    assert source.digest_at("HEAD") is None
    monkeypatch.chdir(package.parent.parent)
    assert source.digest_at("HEAD") == known


def test_a_run_names_all_the_code_that_trained_it(tmp_path, monkeypatch):
    def go_on(code, until):
        monkeypatch.setattr(source, "digest", lambda: code)
        jobs = [(tiny.recipe(), tmp_path / "run")]
        [training] = engine.prepare(jobs, tiny.load, torch.device("cpu"), resume=True)
        engine.train([training], stop=lambda: training.completed >= until)

    go_on("b", 5)
    go_on("a", 12)
    go_on("b", 20)
    assert Run(tmp_path / "run").finish_event["sources"] == "a b"
    go_on("c", 20)  # it is finished: nothing is trained any more
    assert Run(tmp_path / "run").finish_event["sources"] == "a b"
