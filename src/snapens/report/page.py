"""The page: one HTML file that shows what runs are worth, to be opened anywhere, without a network."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from .. import __version__
from ..extras import package
from ..lab.records.run import Run
from ..storage import durable
from . import charts, thumbnail
from .exits import THRESHOLDS, Exits
from .summary import Summary, summarise

_SHOWN = 12  # disputed images that are not folded away


def write(runs: Sequence[Run], path: Path) -> Path:
    """Write the page of some runs; the file appears whole or not at all."""
    return durable.write(path, render(runs).encode())


def render(runs: Sequence[Run]) -> str:
    """The page of some runs, the same for the same folders; names in it are text, whatever they hold."""
    summary = summarise(runs)
    style, script = _resource("page.css"), _resource("page.js")
    environment = package("jinja2", "report").Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=package("jinja2", "report").StrictUndefined
    )
    environment.filters |= {"percent": _percent, "decimal": _decimal, "signed": _signed, "duration": _duration}
    markup = package("markupsafe", "report").Markup
    page: str = environment.from_string(_resource("page.html.jinja")).render(
        summary=summary,
        charts={name: markup(chart.inline()) for name, chart in charts.draw(summary).items()},
        recipe=_recipe(summary),
        pictures=[
            None if example.pixels is None else thumbnail.address(example.pixels)
            for example in summary.details.examples
        ],
        shown=_SHOWN,
        few_examples=charts.FEW_EXAMPLES,
        thresholds=[f"{threshold:.2f}" for threshold in THRESHOLDS],
        table=_shown_table(summary.details.exits),
        data=markup(_script_json(_data(summary))),
        style=markup(style),
        script=markup(script),
        policy=_policy(style, script),
        version=__version__,
    )
    return page.encode("utf-8", "replace").decode()  # a file name may hold what no text can


def _policy(style: str, script: str) -> str:
    """Nothing is loaded from anywhere, and no style or script runs but the page's own."""
    return (
        f"default-src 'none'; style-src '{_sha256(style)}'; script-src '{_sha256(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _data(summary: Summary) -> dict[str, Any]:
    """What the script looks up: numbers as they are shown, so that it formats nothing."""
    examples = [
        {
            "says": [[vote.name, _decimal(vote.probability, 2), vote.right] for vote in example.says],
            "asked": example.asked,
        }
        for example in summary.details.examples
    ]
    return {"table": _shown_table(summary.details.exits), "examples": examples}


def _shown_table(exits: Exits) -> dict[str, list[list[str]]]:
    return {
        "error": [[_percent(value) for value in row] for row in exits.error],
        "nll": [[_decimal(value, 4) for value in row] for row in exits.nll],
        "used": [[_decimal(value, 2) for value in row] for row in exits.used],
    }


def _script_json(data: Any) -> str:
    """JSON that ends no script element and opens no other, in ASCII."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _recipe(summary: Summary) -> Iterable[tuple[str, str]]:
    """The fields of the recipe, in words."""
    for name, value in vars(summary.focus.recipe).items():
        shown = " ".join(value) if isinstance(value, tuple) else value
        if shown != "":
            yield name.replace("_", " "), str(shown)


def _percent(fraction: float) -> str:
    return _decimal(100 * fraction, 2)


def _decimal(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def _signed(fraction: float) -> str:
    return f"{100 * fraction:+.2f}".replace("-", "−")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
