"""The page: one HTML file about some runs that can be opened anywhere, without a connection."""

import base64
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..extras import package
from ..lab.recipe.batch import Transform
from ..lab.records.run import Run
from ..quality import THRESHOLDS, Exits
from ..storage import durable
from . import page_charts
from .basis import choosing
from .charts import FEW_EXAMPLES
from .comparison import label, shown
from .numbers import decimal, signed
from .summary import Summary, summarise

_SHOWN = 12  # disputed images that are visible without a click


def write(runs: Sequence[Run], path: Path, focus: str | None = None) -> Path:
    """Write the page of some runs; the file appears complete or not at all."""
    return durable.write(path, render(runs, focus).encode())


def render(runs: Sequence[Run], focus: str | None = None) -> str:
    """The page of some runs; equal folders give equal pages, and markup in names is shown as text."""
    summary = summarise(runs, focus)
    style, script, table = _resource("page.css"), _resource("page.js"), _shown_table(summary.details.exits)
    jinja = package("jinja2", "report")
    look = {"trim_blocks": True, "lstrip_blocks": True}
    environment = jinja.Environment(autoescape=True, undefined=jinja.StrictUndefined, **look)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"percent": _percent, "decimal": decimal, "signed": _signed, "duration": _duration}
    markup = package("markupsafe", "report").Markup
    page: str = environment.from_string(_resource("page.html.jinja")).render(
        summary=summary,
        charts={name: markup(chart.inline()) for name, chart in page_charts.draw(summary).items()},
        settings=_settings(summary),
        pictures=[
            None if example.pixels is None else _thumbnail(example.pixels) for example in summary.details.examples
        ],
        shown=_SHOWN,
        few_examples=FEW_EXAMPLES,
        choosing=choosing(summary.details.evidence),
        thresholds=[f"{threshold:g}" for threshold in THRESHOLDS],
        table=table,
        data={"table": table, "examples": _examples(summary)},
        style=markup(style),
        script=markup(script),
        policy=_policy(style, script),
        version=__version__,
    )
    return page.encode("utf-8", "replace").decode()  # a file name may contain bytes that are not text


def _policy(style: str, script: str) -> str:
    """A policy that loads nothing and allows only the page's own style and script."""
    return (
        f"default-src 'none'; style-src '{_sha256(style)}'; script-src '{_sha256(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _examples(summary: Summary) -> list[dict[str, Any]]:
    """The numbers for the script, formatted as they are shown."""
    return [
        {
            "means": [[found.name, decimal(found.probability, 2), found.right] for found in example.means],
            "evaluated": example.evaluated,
        }
        for example in summary.details.examples
    ]


def _shown_table(exits: Exits) -> dict[str, list[list[str]]]:
    return {
        "error": [[_percent(value) for value in row] for row in exits.error],
        "nll": [[decimal(value, 4) for value in row] for row in exits.nll],
        "used": [[decimal(value, 2) for value in row] for row in exits.used],
    }


def _thumbnail(pixels: NDArray[np.uint8]) -> str:
    """Pixels (height, width, channels) as a PNG in a data: address; grey from one or two channels, else RGB."""
    image, content = package("PIL.Image", "report"), io.BytesIO()
    colours = pixels[:, :, :3] if pixels.shape[-1] >= 3 else pixels[:, :, 0]
    image.fromarray(np.ascontiguousarray(colours)).save(content, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode("ascii")


def _settings(summary: Summary) -> Iterable[tuple[str, str]]:
    """The settings of the recipe that have a value, and the augmentation that they amount to on this data set."""
    focus = summary.focus
    for name, value in focus.recipe.flat().items() if focus.recipe else ():
        if value is not None:
            yield label(name), shown(value)
    if focus.noun == "images" and (used := focus.data.get("augmentation")):
        yield "augmentation in effect", _augmentation(used)


def _augmentation(used: Mapping[str, Any]) -> str:
    """The crop and the transforms of a run as text, from recipe.json."""
    crop = used.get("crop", {})
    words = [f"crop from {crop['padding']} pixels of padding"] if crop.get("padding") else []
    words += ["crop of random area and aspect"] if crop.get("boxes") else []
    return ", ".join([*words, *(shown(Transform.of(item)) for item in used.get("transforms", ()))]) or "none"


def _percent(fraction: float) -> str:
    return decimal(100 * fraction, 2)


def _signed(fraction: float) -> str:
    return signed(100 * fraction)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
