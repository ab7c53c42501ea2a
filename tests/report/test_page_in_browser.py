"""The page in a real browser: its sliders show what Python computed, and it loads nothing."""

import folders
import hostile
import numpy as np
import pytest
from browser import CHROMIUM, contrast

from snapens.lab.records import gallery
from snapens.quality import THRESHOLDS
from snapens.report import page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Of 100 classes with hostile names, under a hostile name, with images in files with hostile names."""
    path = tmp_path_factory.mktemp("runs") / hostile.FOLDERS[0]
    found = folders.made(path, members=4, examples=300, classes=hostile.NAMES, skill=4.0)
    pixels = np.random.default_rng(0).integers(0, 256, (300, 8, 8, 3), np.uint8)
    gallery.keep(folders.with_curves(found), pixels.__getitem__, lambda index: hostile.FOLDERS[index % 100])
    return found


@pytest.fixture(scope="module")
def opened(browser, run, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report <b>.html"
    page.write([run], path)
    browser.open(path)
    return browser


def exits(outputs, m, threshold):
    """Error, NLL and mean number of members evaluated, example by example; and the answers."""
    wrong, nll, evaluated, answers = 0, 0.0, 0, []
    p = folders.softmax(outputs)
    for example, label in enumerate(outputs.labels):
        total = np.zeros(p.shape[-1])
        for used, member in enumerate(p[::-1][:m], 1):
            total += member[example]
            if threshold < 1 and (total / used).max() >= threshold:
                break
        wrong += total.argmax() != label
        nll -= np.log(total[label] / used)
        evaluated += used
        answers.append((used, int(total.argmax()), (total / used).max()))
    count = len(outputs.labels)
    return wrong / count, nll / count, evaluated / count, answers


@pytest.mark.parametrize(("m", "column"), [(4, 9), (1, 0), (4, 0), (3, 4), (2, 8), (4, 6)])
def test_sliders_show_what_a_plain_loop_finds(m, column, opened, run):
    error, nll, used, answers = exits(run.outputs(), m, THRESHOLDS[column])
    opened.slide("m", m)
    opened.slide("sure", column)
    assert (opened.text("error"), opened.text("nll")) == (f"{100 * error:.2f}", f"{nll:.4f}")
    assert opened.text("used") == f"{used:.2f}"
    assert opened.text("m-shown") == str(m)
    assert opened.text("sure-shown") == ("never" if column == 9 else f"{THRESHOLDS[column]:g}")
    cards = opened.evaluate(
        "[...document.querySelectorAll('[data-example]')].map((card) => ["
        "card.querySelector('[data-used]').textContent, card.querySelector('[data-mean]').textContent, "
        "card.querySelector('[data-sure]').textContent, card.querySelectorAll('.skipped').length])"
    )
    wanted = [answers[index] for index in gallery.read(run).indices]
    assert len(cards) == len(wanted) == 60
    for (shown, name, probability, skipped), (evaluated, choice, confidence) in zip(cards, wanted, strict=True):
        assert (int(shown), 4 - skipped, probability) == (evaluated, evaluated, f"{confidence:.2f}")
        assert name.encode("utf-8", "replace") == hostile.NAMES[choice].encode("utf-8", "replace")
    assert opened.evaluate("document.querySelectorAll('[data-m].chosen').length") == 1
    assert opened.evaluate("document.querySelector('[data-m].chosen').dataset.m") == str(m)
    shown = "[...document.querySelectorAll('[data-exit]')].filter((e) => getComputedStyle(e).opacity === '1')"
    assert opened.evaluate(f"{shown}.map((e) => e.dataset.exit)") == [str(len(THRESHOLDS) * (m - 1) + column + 1)]


def test_the_page_complains_of_nothing_and_asks_for_nothing(opened):
    opened.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true })")
    assert opened.evaluate("new Promise((done) => setTimeout(done, 300, document.images.length))") == 60
    assert opened.evaluate("[...document.images].every((image) => image.naturalWidth === 8)")
    assert opened.complaints == []
    outside = [url for url in opened.requests if not url.startswith("data:")]
    assert [url for url in outside if not url.startswith("file:")] == []
    assert len(outside) == 1


def test_no_name_comes_to_life(opened):
    assert opened.evaluate("typeof window.hit") == "undefined"
    live = (
        "main script, iframe, object, base, main style, main link, [onload], [onerror], [onfocus], main svg svg, video"
    )
    assert opened.evaluate(f"document.querySelectorAll({live!r}).length") == 0
    assert opened.evaluate("document.scripts.length") == 2
    assert opened.evaluate("document.forms.length") == 1


def test_the_policy_is_in_force(opened):
    code = "const s = document.createElement('script'); s.textContent = 'window.late = 1'; document.body.append(s)"
    opened.evaluate(code)
    assert opened.evaluate("typeof window.late") == "undefined"


@pytest.mark.parametrize("width", [1280, 390])
def test_a_click_on_a_term_explains_it_on_the_screen(opened, width):
    opened.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    boxes = opened.evaluate(
        "[...document.querySelectorAll('.term')].map((term) => { term.scrollIntoView(); term.click(); "
        "const hint = document.querySelector(':popover-open'), box = hint.getBoundingClientRect(); hint.hidePopover(); "
        "return [hint.id === term.getAttribute('popovertarget'), box.left, box.right, box.top, box.bottom]; })"
    )
    assert len(boxes) > 5
    for right_one, left, right, top, bottom in boxes:
        assert right_one
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= 800


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390, 360])
def test_text_can_be_read_and_nothing_is_wider_than_the_screen(opened, scheme, width):
    """Every piece of text has a contrast of at least 4.5 to the page, as WCAG asks."""
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    opened.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        opened.evaluate(
            "(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(document.querySelector('.scroll'))"
        )
        == 0
    )
    found = opened.evaluate(
        "[...document.querySelectorAll('h1, h1 span, h2, p, td, th, li span, figcaption, dt, dd, summary, svg text')]"
        ".filter((element) => !element.closest('.skipped')).map((element) => {"
        "const style = getComputedStyle(element); return element.matches('text') ? style.fill : style.color })"
    )
    paper = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    panel = opened.evaluate("getComputedStyle(document.querySelector('.panel')).backgroundColor")
    assert min(contrast(colour, ground) for colour in set(found) for ground in (paper, panel)) >= 4.5
