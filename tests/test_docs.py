"""What the documentation shows of the ledger, the commands and the extras is what these say."""

import importlib.util
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from snapens.report.spread import Spread
from snapens.report.tables import table

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
    paper = ["90"]
    assert typed_numbers(template) == ["1,", *counts, *paper, "two snapshots"]


def test_only_settings_are_typed_into_the_page_of_the_demo():
    template = (ROOT / "docs/start/demo.md.jinja").read_text()
    # the time of the demo, and numbers of epochs, parameters, images and pixels; rates, seeds, n and M
    demo = ["40", "27,694", "40", "0.8.", "5,000", "10,000", "62", "16", "16", "0,", "2-core", "2.13):"]
    glyphs = ["0.8", "500", "0", "4.", "5", "9", "5,", "5)", "5),", "5;"]
    cifar10 = ["45,000", "5,000", "0.4.", "0.1,", "0.2,", "0.4", "0.8,", "5", "0).", "1", "3", "3,", "3", "5)"]
    fashion = ["10,000", "12,000", "2,000", "0.4,", "(10", "10,000", "1", "3", "3,", "5),", "3)."]
    assert typed_numbers(template) == [*demo, *glyphs, *cifar10, *fashion, "five snapshots"]


def test_no_page_or_table_is_stale(results):
    for path, text in results.texts().items():
        assert path.read_text() == text, f"{path.name} is not what results/ says: run `make results`"


def words(picture):
    """The texts of an SVG file."""
    return re.findall(r">([^<]+)</text>", picture)


def places(picture):
    """The coordinates of everything that an SVG file draws, in points."""
    attributes = re.findall(r" (?:d|x|y|transform)=\"([^\"]+)", picture)
    return np.array([float(number) for text in attributes for number in re.findall(r"-?\d+(?:\.\d+)?", text)])


def test_no_picture_is_stale(results):
    for path, content in results.pictures().items():
        now, stored = content.decode(), path.read_text()
        assert len(words(now)) > 10
        assert words(stored) == words(now), f"{path.name}: run `make results`"
        assert places(stored) == pytest.approx(places(now), abs=0.1), f"{path.name}: run `make results`"


def test_a_change_of_a_curve_that_changes_no_text_of_the_picture_is_found(results):
    study = results.budgets.read(results.BUDGETS["glyphs"])
    curve = study.of("one cosine", study.budgets[0])
    higher = replace(curve, percent=tuple(percent + 0.05 for percent in curve.percent))
    changed = replace(study, spendings=tuple(higher if one is curve else one for one in study.spendings))
    before, after = (results.style.saved(one.chart(), "svg").decode() for one in (study, changed))
    assert words(before) == words(after)
    assert places(before) != pytest.approx(places(after), abs=0.1)


def test_only_networks_and_data_sets_with_a_measured_value_are_shown_in_table_1(results):
    whole = table(1, {})
    assert results.measured_part(whole).groups == ()

    group = whole.groups[2]
    row, svhn = group.rows[1], whole.columns.index("SVHN")
    measured = replace(row.values[svhn], ours=Spread((1.8,)))
    row = replace(row, values=(*row.values[:svhn], measured, *row.values[svhn + 1 :]))
    group = replace(group, rows=(group.rows[0], row, *group.rows[2:]))
    shown = results.measured_part(replace(whole, groups=(*whole.groups[:2], group, *whole.groups[3:])))
    assert shown.columns == ("SVHN",)
    assert [group.network for group in shown.groups] == ["DenseNet-40"]
    assert [one.method for one in shown.groups[0].rows] == [one.method for one in group.rows]
    assert shown.groups[0].rows[1].values == (measured,)
    assert shown.title == whole.title


def test_table_1_says_nothing_about_a_data_set_that_it_does_not_show(results):
    assert "SVHN" in table(1, {}).title
    assert "SVHN" not in results.measured_part(table(1, {})).title


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
