"""The wheel and the source archive contain what the package needs, and nothing else."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import snapens

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RESOURCES = {"py.typed", "lab/data/glyphs.npz", "report/page.css", "report/page.html.jinja", "report/page.js"}
"""The files of the package that are not code."""
VERSION = snapens.__version__
BESIDES = {f"snapens-{VERSION}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the wheel and the source archive; built in this environment, so nothing is downloaded."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built / f"snapens-{VERSION}-py3-none-any.whl") as archive:
        yield archive


def test_the_wheel_contains_the_package_and_the_licence(wheel):
    code = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    package = code | {f"snapens/{name}" for name in RESOURCES}
    assert set(wheel.namelist()) == package | BESIDES | {f"snapens-{VERSION}.dist-info/licenses/LICENSE"}


def test_the_source_archive_contains_no_tests_and_no_results(built):
    with tarfile.open(built / f"snapens-{VERSION}.tar.gz") as archive:
        names = {Path(name).relative_to(f"snapens-{VERSION}") for name in archive.getnames()}
    besides = {".gitignore", "CHANGELOG.md", "CITATION.cff", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert {name.parts[0] for name in names} == besides | {"src"}
    assert {f"src/snapens/{name}" for name in RESOURCES} <= {str(name) for name in names}


def test_its_metadata_is_complete(wheel):
    metadata = Parser().parsestr(wheel.read(f"snapens-{VERSION}.dist-info/METADATA").decode())
    assert metadata["Name"] == "snapens"
    assert metadata["Version"] == VERSION
    assert metadata["Summary"] == PROJECT["description"]
    assert metadata["License-Expression"] == "MIT"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# snapens")
    assert set(metadata.get_all("Provides-Extra")) == PROJECT["optional-dependencies"].keys()


def test_the_package_works_from_the_wheel_alone(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    (tmp_path / "empty").mkdir()
    program = """
import snapens
from importlib import resources
from snapens.cli import main
from snapens.lab.data import glyphs
print(snapens.__file__)
print(glyphs.draw("train", 1).shape, len(resources.files("snapens.report").joinpath("page.html.jinja").read_text()) > 0)
main(["--version"])
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path / "empty", env=environment, capture_output=True, text=True, check=True
    ).stdout
    init = tmp_path / "site/snapens/__init__.py"
    assert done.splitlines() == [str(init), "(1, 16, 16, 1) True", f"snapens {VERSION}"]


def test_the_version_is_that_of_the_changelog_and_of_the_citation():
    release = re.search(r"^## (\S+), (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text()
    assert release[1] == VERSION
    assert f"\nversion: {VERSION}\n" in citation
    assert f'\ndate-released: "{release[2]}"\n' in citation


def test_the_workflow_tests_the_python_versions_that_the_metadata_names():
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    tested = re.findall(r'"([\d.]+)"', re.search(r"python: \[(.+)\]", workflow)[1])
    named = [found[1] for line in PROJECT["classifiers"] if (found := re.search(r"Python :: (\d+\.\d+)$", line))]
    assert tested == named
    assert PROJECT["requires-python"] == f">={named[0]}"
