"""The page as text: complete, safe, the same each time."""

import base64
import io
import re
import shutil
import sys
from html.parser import HTMLParser

import folders
import hostile
import numpy as np
import pytest
import tiny
from plain import words

from snapens.errors import MismatchError, SnapensError, StoreError
from snapens.lab.records import gallery
from snapens.lab.records.run import Run
from snapens.report import page


class Shape(HTMLParser):
    """Elements, with the names of their attributes, in order; and all the text that is not a script's."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.values, self.text = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, sorted(name for name, _ in attributes)))
        self.values += [value for _, value in attributes if value]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A run with all there can be, and a baseline."""
    folder = tmp_path_factory.mktemp("runs")
    run = folders.with_curves(folders.made(folder / "cycles", held_out=30), bump=0.3)
    gallery.keep(run, np.random.default_rng(0).integers(0, 256, (40, 4, 4, 1), np.uint8).__getitem__)
    return [folders.made(folder / "standard", method="single", seed=1, held_out=30), run]


def test_a_page_answers_first_and_shows_every_part(demo):
    shape = Shape(page.render(demo))
    text = re.sub(r"\s+", " ", " ".join(shape.text))
    errors = [f"{100 * run.outputs().member_errors[-1]:.2f} %" for run in demo]
    ensemble = f"{100 * demo[1].outputs().ensemble_errors[-1]:.2f} %"
    first = text.index("The ensemble is ")
    assert [text.index(number) > first for number in (*errors, ensemble)] == [True] * 3
    headings = ["Findings", "All runs", "Training and snapshots", "Number of members and early exit", "Diversity"]
    places = [text.index(heading) for heading in (*headings, "Calibration and classes", "Recipe")]
    assert places == sorted(places)
    assert sum(tag == "svg" for tag, _ in shape.elements) == 9
    assert sum(tag == "img" for tag, _ in shape.elements) == len(gallery.read(demo[1]).indices) > 12
    assert "The findings are based on 30 held-out images" in text
    assert "held-out error, %" in text
    assert "re-estimated BatchNorm statistics. They are estimated from nothing, also at the ends." in text


BETTER, WORSE, SURE = (2.0, 2.0, 2.0), (0.0, 0.0, 4.0), (50.0, 50.0, 50.0)
"""The skill of each member: the mean of all is better than the last, or worse, or all are always right."""


def test_the_headline_says_that_it_is_about_one_of_several_runs(tmp_path):
    cycles = [folders.made(tmp_path / f"cycles {seed}", seed=seed) for seed in (0, 1)]
    standard = folders.made(tmp_path / "standard", method="single")
    assert "This is about one of 3 runs. All runs compares them." in words(page.render([*cycles, standard]))
    assert "This is about one of 2 runs." in words(page.render(cycles))
    assert "This is about one of" not in words(page.render([cycles[0], standard]))  # a run and its baseline


@pytest.mark.parametrize(
    ("skill", "standard", "outcome"),
    [
        (BETTER, 0.0, "is better than its last snapshot and than a single model with the standard schedule."),
        (BETTER, 6.0, "is better than its last snapshot, but worse than a single model with the standard schedule."),
        (WORSE, 6.0, "is worse than its last snapshot and than a single model with the standard schedule."),
        (WORSE, 0.0, "is worse than its last snapshot, but better than a single model with the standard schedule."),
        (WORSE, None, "is worse than its last snapshot."),
        ((4.0, 4.0, 4.0), None, "is not measurably better than its last snapshot."),
        (SURE, 50.0, "is as accurate as its last snapshot and as a single model with the standard schedule."),
        (
            SURE,
            -50.0,
            "is as accurate as its last snapshot, but better than a single model with the standard schedule.",
        ),
    ],
)
def test_the_headline_says_whether_the_ensemble_wins_and_names_each_error(tmp_path, skill, standard, outcome):
    runs = [folders.made(tmp_path / "cycles", examples=400, skill=skill, apart=0.7)]
    if standard is not None:
        runs.append(folders.made(tmp_path / "standard", method="single", examples=400, skill=standard, seed=1))
    errors = {"ensemble": runs[0].outputs().ensemble_errors[-1]}
    errors |= zip(("last snapshot", "single model"), (run.outputs().member_errors[-1] for run in runs), strict=False)
    numbers = ", ".join(f"{name} {100 * error:.2f} %" for name, error in errors.items())
    assert f"The ensemble {outcome} Test error: {numbers}." in words(page.render(runs))


def test_a_higher_error_within_noise_is_not_called_a_gain(tmp_path):
    run = folders.made(tmp_path / "run", skill=(1.5, 1.5, 2.0), apart=0.3, examples=25)
    assert run.outputs().ensemble_errors[-1] > run.outputs().member_errors[-1]
    assert "The ensemble is not better than its last snapshot." in words(page.render([run]))


@pytest.mark.parametrize("members", [1, 3])
def test_the_contents_link_to_every_section_and_every_term_has_its_text(tmp_path, members):
    html = page.render([folders.made(tmp_path / "run", members=members)])
    linked, headings = re.findall('<a href="#([^"]*)">', html), re.findall('<h2 id="([^"]*)">', html)
    assert linked == headings == re.findall('<section aria-labelledby="([^"]*)">', html)
    assert len(linked) == (6 if members > 1 else 4)
    targets = dict(re.findall('popovertarget="([^"]*)" title="([^"]*)"', html))
    assert targets
    assert targets.items() <= dict(re.findall('<div popover id="([^"]*)" class="hint">([^<]*)<', html)).items()


def test_a_standard_schedule_is_called_as_the_paper_calls_it(tmp_path):
    for dropout, names in ((0.0, {"Single", "NoCycle"}), (0.3, {"Dropout"})):
        run = folders.made(tmp_path / str(dropout), method="single", dropout=dropout)
        assert set(re.findall("<small>.*the paper’s ([A-Za-z]+)", page.render([run]))) == names


def test_a_page_is_about_a_snapshot_ensemble_if_there_is_one(tmp_path):
    methods = ("single", "singlecycle", "snapshot")
    runs = [folders.made(tmp_path / method, method=method) for method in methods]
    for last in range(1, 4):
        assert f"<title>{methods[last - 1]} · snapens report" in page.render(runs[:last])


def test_a_page_needs_neither_curves_nor_a_gallery_nor_a_log_nor_a_second_member(tmp_path):
    bare = folders.made(tmp_path / "bare", members=1)
    (bare.path / "log.jsonl").unlink()
    html = page.render([bare])
    assert "There is only one snapshot" in html
    assert "The test error of the only snapshot is" in html
    assert not any(words in html for words in ("The ensemble", "Ensemble of", "disagree most", 'id="sure"'))
    assert "unfinished, 1 of 1" in html
    shape = Shape(page.render([folders.made(tmp_path / "two", members=2)]))
    assert ("img", ["alt", "height", "src", "width"]) not in shape.elements
    assert any("--curves" in text for text in shape.text)
    assert sum("Do not use them to choose m" in text for text in shape.text) == 2


def test_the_same_folders_give_the_same_bytes(demo, tmp_path):
    assert page.write(demo, tmp_path / "new" / "a.html") == tmp_path / "new" / "a.html"
    page.write(demo, tmp_path / "b.html")
    assert (tmp_path / "new" / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_page_of_the_size_of_cifar_100_stays_small(tmp_path):
    classes = [f"class {k}" for k in range(100)]
    run = folders.made(tmp_path / "run", members=5, examples=2000, classes=classes)
    gallery.keep(run, np.random.default_rng(0).integers(0, 256, (2000, 32, 32, 3), np.uint8).__getitem__)
    assert len(page.render([run]).encode()) < 1_000_000  # what grows with the examples is the gallery, and that is full


def test_nothing_is_loaded_and_nothing_runs_but_the_pages_own(demo):
    html = page.render(demo)
    assert re.findall(r"(?:https?:)?//\w", re.sub(r"(data:image/png;base64,|sha256-)[\w+/=]*", "", html)) == []
    assert "style=" not in html
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src &#39;none&#39;; style-src &#39;sha256-")
    assert "unsafe" not in policy
    shape = Shape(html)
    identities = re.findall(r' id="([^"]*)"', html)
    assert len(identities) == len(set(identities))
    assert not any(name.startswith("on") for _, names in shape.elements for name in names)


def test_hostile_names_stay_text(tmp_path):
    """A hundred class names and folder names, a network, a data set and a device change no element of the page."""

    def pages(names, folder_names, word):
        (tmp_path / word).mkdir()
        runs = []
        for k, name in enumerate(folder_names):
            method = "single" if k == 1 else "snapshot"
            run = folders.made(
                tmp_path / word / name, classes=names, members=2, examples=60, method=method, device=word
            )
            tiny.altered(
                run.path / "recipe.json",
                lambda text: text.replace('"glyphs"', f'"{word}"').replace('"small"', f'"{word}"'),
            )
            runs.append(Run(run.path))
        return page.render(runs)

    calm = Shape(pages([f"class {k}" for k in range(100)], [f"run {k}" for k in range(100)], "calm"))
    html = pages(hostile.NAMES, hostile.FOLDERS, "<b onclick=hit>")
    found = Shape(html)
    assert found.elements == calm.elements
    assert "\u2028" not in re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1]
    text = "".join(found.text)
    assert all(name.encode("utf-8", "replace").decode() in text for name in hostile.FOLDERS)


def test_runs_that_were_tested_on_other_images_are_rejected(tmp_path):
    runs = [folders.made(tmp_path / "a"), folders.made(tmp_path / "b", labels_seed=9)]
    with pytest.raises(
        MismatchError, match=r"tested on the same images in the same order, but those of .*a and .*b differ"
    ):
        page.render(runs)


def test_a_place_that_cannot_be_written_is_named(demo, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"/file/page\.html could not be written"):
        page.write(demo[:1], tmp_path / "file" / "page.html")


@pytest.mark.parametrize("name", ["jinja2", "matplotlib", "PIL"])
def test_a_package_that_is_missing_is_named_with_its_extra(name, demo, monkeypatch):
    for module in (name, f"{name}.Image"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SnapensError, match=rf"{name} must be installed for this: pip install .*\[report\]"):
        page.render(demo)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "L"), (3, "RGB"), (4, "RGB")])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (5, 7), (96, 96)])
def test_a_thumbnail_has_the_pixels_of_its_image(channels, mode, height, width):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
    content = base64.b64decode(page._thumbnail(pixels).removeprefix("data:image/png;base64,"))
    with image.open(io.BytesIO(content)) as opened:
        assert (opened.format, opened.mode, opened.size) == ("PNG", mode, (width, height))
        assert np.array_equal(np.asarray(opened).reshape(height, width, -1), pixels[:, :, : 3 if mode == "RGB" else 1])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (119, "119 s"), (120, "2 min"), (7140, "119 min"), (7200, "2 h 00 min"), (9015, "2 h 30 min")],
)
def test_a_duration_is_shown_in_seconds_minutes_or_hours(seconds, text):
    assert page._duration(seconds) == text


def test_a_card_shows_the_name_of_the_images_file(tmp_path):
    run = folders.made(tmp_path / "run", examples=50)
    gallery.keep(run, np.zeros((50, 4, 4, 1), np.uint8).__getitem__, lambda index: f"ant/{index}.png")
    first, *_ = gallery.read(run).indices
    html = page.render([run])
    assert f'alt="ant/{first}.png"' in html
    assert "test image " not in html


def test_a_page_says_where_all_members_agree(tmp_path):
    assert "All snapshots predict the same class" in page.render([folders.made(tmp_path / "run", apart=0.0)])


def test_a_run_that_lost_a_snapshot_is_unfinished(tmp_path):
    run = folders.made(tmp_path / "run")
    shutil.copy(run.path / "manifest.previous.json", run.path / "manifest.json")
    html = page.render([run])
    assert "unfinished, 2 of 3 snapshots" in html
    assert "The run is not finished: 2 of 3 snapshots exist." in html


NONE = {"crop": {"padding": 0, "boxes": False}, "transforms": []}


def test_a_page_about_a_table_has_examples_and_no_images(tmp_path):
    rows = {"kind": "rows", "mean": [0.0] * 5, "deviation": [1.0] * 5}
    html = page.render(
        [folders.made(tmp_path / "run", held_out=20, data={"preprocessing": rows, "augmentation": NONE})]
    )
    visible = html[: html.index("<script")].partition("</style>")[2]
    assert "test example 1" in visible
    assert "for the 20 held-out examples. These are too few to choose m" in visible
    assert '<th scope="col">examples</th>' in visible
    assert "augmentation" not in visible
    assert not re.search(r"\bimages?\b", re.sub(r"<[^>]*>", " ", visible))


def test_the_recipe_shows_the_settings_of_transforms_and_the_augmentation_in_effect(tmp_path):
    used = {"crop": {"padding": 4, "boxes": False}, "transforms": [{"kind": "mirror"}, {"kind": "cutout", "size": 4}]}
    html = page.render([folders.made(tmp_path / "a", transforms=("cutout=4",), data={"augmentation": used})])
    assert "<dt>transforms</dt><dd>cutout 4</dd>" in html
    assert "<dd>crop from 4 pixels of padding, mirror, cutout 4</dd>" in html
    used = {"crop": {"padding": 0, "boxes": True}, "transforms": []}
    html = page.render([folders.made(tmp_path / "b", data={"augmentation": used})])
    assert "<dt>augmentation in effect</dt><dd>crop of random area and aspect</dd>" in html
    html = page.render([folders.made(tmp_path / "c", data={"augmentation": NONE})])
    assert "<dt>augmentation in effect</dt><dd>none</dd>" in html
