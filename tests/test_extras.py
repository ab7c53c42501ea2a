"""The commands that the errors for missing packages print."""

import ast
import re
import shlex
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from snapens import extras
from snapens.errors import MissingPackageError

CLONE = Path(__file__).parent.parent
PROJECT = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CALLS = {
    tuple(argument.value for argument in node.args)
    for path in (CLONE / "src").rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "package"
}
"""(module, extra) of every optional import in the source."""


def distribution(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def requirements(name):
    """What a distribution installs: itself and what it requires."""
    return {name, *(distribution(line) for line in metadata.requires(name) or [] if "extra ==" not in line)}


def test_every_extra_has_code_behind_it():
    assert {extra for _, extra in CALLS} == EXTRAS.keys() - {"test", "docs"}


@pytest.mark.parametrize(("module", "extra"), sorted(CALLS))
def test_the_printed_command_installs_the_package_that_is_missing(module, extra, monkeypatch):
    root = module.partition(".")[0]
    owners = {distribution(name) for name in metadata.packages_distributions()[root]}
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError) as raised:
        extras.package(module, extra)
    assert str(raised.value) == f'{root} must be installed for this: pip install -e "{CLONE}[{extra}]"'
    named = [*EXTRAS[extra], *PROJECT["dependencies"]]
    assert owners & set().union(*(requirements(distribution(line)) for line in named))


@pytest.mark.parametrize("extra", sorted({extra for _, extra in CALLS}))
@pytest.mark.parametrize("quote", ["'", '"'])
def test_outside_a_clone_the_packages_of_the_extra_are_named(extra, quote, monkeypatch, tmp_path):
    lines = [*PROJECT["dependencies"]]
    for name, packages in EXTRAS.items():  # as a wheel has them
        lines += [f"{package.partition(';')[0].strip()}; extra == {quote}{name}{quote}" for package in packages]
    monkeypatch.setattr(extras, "_CLONE", tmp_path)
    monkeypatch.setattr(extras.metadata, "requires", lambda name: lines)
    assert shlex.split(extras.install_command(extra)) == ["pip", "install", *EXTRAS[extra]]
