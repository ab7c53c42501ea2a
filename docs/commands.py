"""Writes reference/command-line.md: the help texts of the commands, and the prose of command-line.md.jinja.

`make results` runs it; a test fails when the page does not match the commands.
"""

import io
import os
import re
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from unittest.mock import patch

from jinja2 import Environment, StrictUndefined

from snapens.cli import main
from snapens.report.formats import markdown_row

DOCS = Path(__file__).parent
PAGE = DOCS / "reference/command-line.md"
OWN = ("positional arguments", "options")
"""The groups of the options that a command does not share with others."""


@dataclass
class Help:
    """The help text of a command."""

    description: str = ""
    commands: list[str] = field(default_factory=list)
    groups: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """The options of each group: how an option is written, and its meaning."""


@cache
def help_of(command: str) -> Help:
    """Read what `snapens COMMAND --help` prints: a description, then boxes with a title."""
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with patch.dict(os.environ, COLUMNS="1000"), redirect_stdout(shown), suppress(SystemExit):
        main([*command.split(), "--help"])
    shown.seek(0)
    start, *boxes = re.split(r"^╭─ (.+?)(?: options)? ─+╮$", shown.read(), flags=re.MULTILINE)
    found = Help(" ".join(start.split("\n\n")[1].split()))
    for title, box in zip(boxes[::2], boxes[1::2], strict=True):
        lines = [line[2:-1].rstrip() for line in box.splitlines() if line.startswith("│ ")]
        if title == "subcommands":
            found.commands = [line.split()[1] for line in lines if "•" in line]
            continue
        rules = [number for number, line in enumerate(lines, 1) if set(line) == {"─"}]  # below the group's description
        text = "\n".join(lines[max(rules, default=0) :])
        options = re.sub(r"\n +", "  ", text).splitlines()  # further lines of a meaning are indented
        pairs = (option.partition("  ") for option in options)
        found.groups[title] = [(name, " ".join(meaning.split())) for name, _, meaning in pairs]
    return found


def every(command: str = "") -> list[str]:
    """The names of a command's sub-commands, and of theirs."""
    below = [f"{command} {name}".strip() for name in help_of(command).commands]
    return [name for one in below for name in (one, *every(one))]


def description(command: str) -> str:
    """What a command does."""
    return help_of(command).description


def commands() -> str:
    """A table of the commands."""
    rows = [[f"[`{name}`](#snapens-{name})", description(name)] for name in help_of("").commands]
    return table(["command", "what it does"], rows)


def options(command: str, *groups: str) -> str:
    """A table of the options of a command, in some groups; by default its own."""
    found = [pair for group in groups or OWN for pair in help_of(command).groups.get(group, [])]
    rows = [[f"`{name}`", meaning.replace(" (default: )", "")] for name, meaning in found if name != "-h, --help"]
    return table(["option", "meaning"], rows)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    cells = [[text.replace("|", "\\|") for text in row] for row in rows]
    return "\n".join(map(markdown_row, [head, ["---"] * len(head), *cells]))


def page() -> str:
    """The whole page."""
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    template = environment.from_string((DOCS / "command-line.md.jinja").read_text())
    return template.render(commands=commands, description=description, options=options).lstrip()


if __name__ == "__main__":
    PAGE.write_text(page())
