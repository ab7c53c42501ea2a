"""Charts as SVG inside a page: coloured by its style sheet, with a title and a description for screen readers."""

import re
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from . import style

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_REFERENCE = re.compile(r"#([\w.-]+)")
_PLACES = {"fill": "f", "stroke": "s"}
_REFERRING = ("href", "clip-path")
_MARKED = ("m", "exit")
"""Lines whose points get an attribute `data-…` with their number, counted from 1. The script of the page shows or hides
each of them, so they lose the transparency of the line."""
HINTS = "hints"
"""The id of the line whose points have the hints of a chart."""


@dataclass(frozen=True)
class Chart:
    """A drawn figure, its title, a sentence that describes it, and a hint for each point of the line `HINTS`."""

    name: str
    figure: Any
    title: str
    description: str
    hints: tuple[str, ...] = ()

    def saved(self, kind: str) -> bytes:
        """The content of a file, "svg" or "png"."""
        return style.saved(self.figure, kind, self.name)

    def inline(self) -> str:
        """An `<svg>` element for a page.

        A strict policy forbids style attributes, so they become presentation attributes of SVG. A colour of
        `style.COLOURS` also becomes a class, so that the style sheet of the page can change it.
        """
        ElementTree.register_namespace("", _SVG)
        root = ElementTree.fromstring(self.saved("svg"))
        for element in root.iter():
            for child in list(element):
                if child.tag in (f"{{{_SVG}}}style", f"{{{_SVG}}}metadata"):
                    element.remove(child)
            _without_style(element)
        self._mark_points(root)
        _rename(root, self.name)
        self._name(root)
        text = ElementTree.tostring(root, encoding="unicode").replace(f' xmlns="{_SVG}"', "", 1)  # HTML implies it
        return re.sub(r"\s*\n\s*", " ", text)

    def _mark_points(self, root: ElementTree.Element) -> None:
        for element in root.iter():
            line, points = element.get("id"), list(element.iter(f"{{{_SVG}}}use"))
            if line in _MARKED:
                for k, point in enumerate(points, 1):
                    point.set(f"data-{line}", str(k))
                for shape in element.iter():
                    shape.attrib.pop("stroke-opacity", None)
            if line == HINTS:
                for point, hint in zip(points, self.hints, strict=True):
                    ElementTree.SubElement(point, f"{{{_SVG}}}title").text = hint

    def _name(self, root: ElementTree.Element) -> None:
        for attribute in ("width", "height", "version"):
            root.attrib.pop(attribute, None)
        root.set("class", "chart")
        root.set("role", "img")
        root.set("aria-labelledby", f"{self.name}-title {self.name}-description")
        for tag, name in (("desc", "description"), ("title", "title")):
            element = ElementTree.Element(f"{{{_SVG}}}{tag}", id=f"{self.name}-{name}")
            element.text = getattr(self, name)
            root.insert(0, element)


def _without_style(element: ElementTree.Element) -> None:
    classes = []
    for declaration in element.attrib.pop("style", "").split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key in ("", "font-family"):  # the page sets the font
            continue
        element.set(key, value)
        if key in _PLACES and value in style.COLOURS:
            classes.append(f"{_PLACES[key]}-{style.COLOURS[value]}")
    if classes:
        element.set("class", " ".join(classes))


def _rename(root: ElementTree.Element, name: str) -> None:
    """Prefix ids that are referred to with the chart's name, and remove all others."""
    for element in root.iter():
        if (target := element.attrib.pop(f"{{{_XLINK}}}href", None)) is not None:
            element.set("href", target)
    used = {
        found
        for element in root.iter()
        for key, value in element.attrib.items()
        if key in _REFERRING
        for found in _REFERENCE.findall(value)
    }
    for element in root.iter():
        identity = element.attrib.pop("id", "")
        if identity in used:
            element.set("id", f"{name}-{identity}")
        for key in _REFERRING:
            if key in element.attrib:
                element.set(key, _REFERENCE.sub(rf"#{name}-\1", element.attrib[key]))
