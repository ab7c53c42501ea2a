"""The documentation in a real browser: nothing is wider than the window, and pictures can be read in both modes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import CHROMIUM, contrast

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")

ROOT = Path(__file__).parent.parent
PICTURES = sorted(path for path in (ROOT / "docs").rglob("*.svg") if "<text" in path.read_text())


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return sorted(folder.rglob("index.html"))


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_window(browser, pages, width):
    """Tables and code may scroll inside their own frames."""
    assert len(pages) > 10
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    for page in pages:
        browser.open(page)
        wide = browser.evaluate(
            "new Promise((done) => setTimeout(done, 50)).then(() => "  # the theme's script frames the tables
            "[...document.querySelectorAll('.md-header *, .md-content *, .md-footer *')].filter((element) => "
            "!element.parentElement.closest('.md-typeset__scrollwrap, pre, .md-search, .md-tabs, svg') && "
            f"element.getBoundingClientRect().right > {width}).map((element) => element.outerHTML.slice(0, 80)))"
        )
        assert wide == [], page.parent.name
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, page.parent.name


def test_a_flag_is_not_broken_after_its_hyphens(browser, pages):
    (page,) = (page for page in pages if page.parent.name == "recipes")
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    browser.open(page)
    lines = "[...document.querySelectorAll('code.short')].map((e) => [e.textContent, e.getClientRects().length])"
    found = dict(browser.evaluate(lines))
    assert found["--weight-decay"] == 1
    assert set(found.values()) == {1}


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_can_be_read_in_both_modes(browser, picture, mode):
    """Its background has the mode, and all text has a contrast of at least 4.5 to it and to the boxes on it."""
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
    browser.open(picture)
    fills = "[...document.querySelectorAll({!r})].map((element) => getComputedStyle(element).fill)"
    background, *boxes = browser.evaluate(fills.format("#patch_1 path, rect:not(defs *)"))
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 27)"}[mode]
    texts = set(browser.evaluate(fills.format("text")))
    assert min(contrast(text, ground) for text in texts for ground in {background, *boxes}) >= 4.5
