"""What the documentation shows of the ledger, the commands and the extras is what these say."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMES = r"(ResNet|DenseNet|CIFAR|WRN-28)-\d+|(Table|Figure) \d|(Snapshot|α₀ =) 0\.[12]"
"""Where a template may have digits: names of networks and data sets, of parts of the paper, and its two peak rates."""
NOT_PROSE = r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|```.*?```|`[^`]*`|\]\([^)]*\)(\{[^}]*\})?|<[^>]*>"
"""Comments, statements and expressions of a template, code, the targets of links and images, and HTML tags."""
WORDS = "two|three|four|five|six|seven|eight|nine|ten|half|third|quarter|fifth|tenth|twice"
UNITS = "points?|percent|%|nats|images|members|snapshots|epochs|seconds|minutes|hours"


def script(name):
    """A script in docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def results():
    return script("results")


@pytest.fixture
def commands():
    return script("commands")


def typed_numbers(template):
    """Numbers in the prose of a template: digits outside of names, number words before a unit, literal expressions."""
    prose = re.sub(NAMES, "", re.sub(NOT_PROSE, "", template, flags=re.DOTALL))
    digits = re.findall(r"\S*\d\S*", prose)
    words = re.findall(rf"\b(?:{WORDS})\b(?: to \w+)?(?: of the)? (?:{UNITS})", prose)
    return digits + words + re.findall(r"\{\{[-( ]*[\d\"'][^}]*\}\}", template)


@pytest.mark.parametrize(
    ("template", "typed"),
    [
        ("ResNet-110 on CIFAR-100 (Table 1, α₀ = 0.1), Snapshot 0.2: {{ a.error }} %, `m=1`, ![x](f-3.svg)", []),
        ('{% set ok = check(a < 0.5) %}{# 3 #}<details markdown="1">{{ span(a, 2) }}', []),
        ("The error is 21.3 %.", ["21.3"]),
        ("0.1 is better than 0.2", ["0.1", "0.2"]),
        ("better by two to three points", ["two to three points"]),
        ("a third of the images", ["third of the images"]),
        ('{{ 21.3 }} and {{ "21.3" }} and {{ -(3) }}', ["{{ 21.3 }}", '{{ "21.3" }}', "{{ -(3) }}"]),
    ],
)
def test_a_number_that_is_typed_into_a_template_is_found(template, typed):
    assert typed_numbers(template) == typed


def test_no_number_of_the_results_is_typed_by_hand():
    assert typed_numbers((ROOT / "docs/results.md.jinja").read_text()) == []


def test_only_numbers_of_the_paper_are_typed_into_when_it_pays():
    template = (ROOT / "docs/understand/when-it-pays.md.jinja").read_text()
    counts = ["256)", "1).", "1)."]  # a batch size, and n
    paper = ["40", "50", "90"]
    assert typed_numbers(template) == ["1,", *counts, *paper, "two snapshots"]


def test_no_page_or_table_is_stale(results):
    for path, text in results.texts().items():
        assert path.read_text() == text, f"{path.name} is not what results/ says: run `make results`"


def test_no_picture_is_stale(results):
    for path, content in results.pictures().items():
        words = re.findall(r">([^<]+)</text>", content.decode())
        assert len(words) > 10
        assert re.findall(r">([^<]+)</text>", path.read_text()) == words, f"{path.name}: run `make results`"


def test_the_page_of_the_command_line_is_not_stale(commands):
    assert commands.PAGE.read_text() == commands.page(), "command-line.md: run `make results`"


def test_the_page_of_the_command_line_has_every_command_and_option(commands):
    sections = dict(re.findall(r"^##+ snapens ([a-z ]+)\n(.*?)(?=^##|\Z)", commands.page(), re.DOTALL | re.MULTILINE))
    assert list(sections) == commands.every()
    shared = sections["train"] + sections["sweep"]  # options of several commands are shown once
    for name, text in sections.items():
        flags = {option for group in commands.help_of(name).groups.values() for option, _ in group}
        for flag in {re.match(r"(--)?[\w-]+|.*", option)[0] for option in flags} - {"-h"}:
            assert f"`{flag}" in text + shared, f"{name}: {flag} is missing"


def test_the_help_of_a_command_is_read_completely(commands):
    found = commands.help_of("paper run")
    assert found.description == "Train the runs of some cells; on a GPU, several runs share the device."
    assert list(found.groups) == ["positional arguments", "options", "training", "plan"]
    assert found.groups["plan"][0] == (
        "--pack INT",
        "The maximum number of runs that share a device. By default 8 on a GPU, and 1 on a CPU.",
    )


def test_the_install_page_lists_every_extra_with_its_packages():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs/start/install.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", page, re.MULTILINE))
    assert rows.keys() == extras.keys()
    for name in extras.keys() - {"test", "docs"}:
        assert rows[name] == ", ".join(package.replace(">=", " ≥ ") for package in extras[name])
