"""Charts show the summary's numbers, and go into a page as SVG that its policy and its theme allow."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import folders
import numpy as np
import pytest

from snapens import Combination
from snapens.report import charts, page_charts, style
from snapens.report.summary import summarise


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    cycles = folders.with_curves(folders.made(folder / "cycles"), bump=0.1)
    return summarise([cycles, folders.made(folder / "standard", method="single", seed=1)])


@pytest.fixture(scope="module")
def drawn(summary):
    return page_charts.draw(summary)


def lines(chart, axes=0):
    """What each line shows, by its label."""
    shown = [line for line in chart.figure.axes[axes].lines if line.get_gid() is None]
    found = {line.get_label(): line for line in shown}
    return {label: (list(line.get_xdata()), list(line.get_ydata())) for label, line in found.items()}


def percent(scores):
    return [100 * score.error for score in scores]


def test_training_shows_rates_losses_and_minima(summary, drawn):
    focus, baseline = summary.focus, summary.baseline
    rates = [line for line in drawn["training"].figure.axes[0].lines if len(line.get_xdata()) > 2]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in rates] == [baseline.rates(), focus.rates()]
    found = lines(drawn["training"], axes=1)
    assert found["cycles"] == (list(focus.trace.epochs), list(focus.trace.losses))
    assert found["standard schedule"] == (list(baseline.trace.epochs), list(baseline.trace.losses))
    others = [line for line in drawn["training"].figure.axes[1].lines if line.get_gid() is None]
    marks = [line for line in others if line.get_label().startswith("_")]
    assert [line.get_xdata()[0] for line in marks] == list(focus.minima)


@pytest.mark.parametrize(("losses", "labels"), [((3.7, 0.3), ["0.5", "1", "2"]), ((2.5, 0.02), ["0.1", "1"])])
def test_the_logarithmic_axis_of_the_training_loss_has_several_labels(losses, labels):
    with style.drawing():
        axes = style.figure().subplots()
        charts.training_loss(axes, [charts.Curve((0, 1), losses, "cycles", style.ENSEMBLE)], ())
        axes.figure.draw_without_rendering()
        low, high = axes.get_ylim()
        ticks = zip(axes.get_yticks(), axes.yaxis.get_ticklabels(), strict=True)
        shown = [label.get_text() for place, label in ticks if low <= place <= high]
    assert shown == labels


def test_snapshots_alone_and_growing_from_the_first(summary, drawn):
    found = lines(drawn["snapshots"])
    assert found["each snapshot alone"] == ([1, 2, 3], percent(summary.focus.members))
    assert found["the first m together"] == ([1, 2, 3], percent(summary.focus.first))
    assert found["single model"][1] == [100 * summary.baseline.single.error] * 2


def test_points_are_the_last_m(summary, drawn):
    (points,) = (line for line in drawn["last"].figure.axes[0].lines if line.get_gid() == "m")
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([1, 2, 3], percent(summary.focus.last))
    assert not drawn["last"].figure.axes[0].patches  # bars would mislead: the axis does not start at zero
    texts = [text.get_text() for text in drawn["last"].figure.axes[0].texts]
    assert texts == [f"{error:.2f}" for error in percent(summary.focus.last)]


def test_early_exit_beside_a_fixed_m(summary, drawn):
    found, exits = lines(drawn["exits"]), summary.details.exits
    assert found["always the last m"] == ([1, 2, 3], percent(summary.focus.last))
    assert found["early exit"] == (exits.used[-1].tolist(), (100 * exits.error[-1]).tolist())


@pytest.mark.parametrize(("name", "scale", "form"), [("correlation", 1, "{:.3f}"), ("disagreement", 100, "{:.1f}")])
def test_a_matrix_has_a_number_for_each_pair(summary, drawn, name, scale, form):
    values = scale * getattr(summary.details.quality, name)
    shown = {text.get_position()[::-1]: text.get_text() for text in drawn[name].figure.axes[0].texts}
    pairs = [(row, column) for row in range(3) for column in range(3) if row != column]
    assert shown == {(row + 1, column + 1): form.format(values[row, column]) for row, column in pairs}


def test_a_pair_of_snapshots_has_one_colour(tmp_path):
    details = summarise([folders.made(tmp_path / "run", members=2)]).details
    details.quality.correlation[0, 1] = np.nextafter(details.quality.correlation[1, 0], 0)  # as rounding leaves it
    for name in ("correlation", "disagreement"):
        patches = page_charts.draw(replace(summarise([folders.made(tmp_path / name, members=2)]), details=details))[
            name
        ]
        assert len({patch.get_alpha() for patch in patches.figure.axes[0].patches}) == 1


@pytest.mark.parametrize(("members", "form"), [(7, "{:.3f}"), (8, "{:.2f}"), (15, "{:.2f}"), (16, None)])
def test_a_large_matrix_has_shorter_numbers_and_then_none(tmp_path, members, form):
    summary = summarise([folders.made(tmp_path / "run", members=members)])
    texts = page_charts.draw(summary)["correlation"].figure.axes[0].texts
    values = summary.details.quality.correlation[~np.eye(members, dtype=bool)]
    assert [text.get_text() for text in texts] == ([form.format(value) for value in values] if form else [])


@pytest.mark.parametrize("name", ["interpolated", "estimated"])
def test_lines_lead_to_the_last_snapshot(summary, drawn, name):
    found = [(list(line.get_xdata()), list(line.get_ydata())) for line in drawn[name].figure.axes[0].lines]
    wanted = [([0, 0.5, 1], list(getattr(line, f"{name}_percent"))) for line in summary.details.between.lines]
    assert found == wanted
    assert [xs[-1] for xs, _ in found] == [1, 1]
    ends = {round(ys[-1], 9) for _, ys in found}
    assert ends == {round(100 * summary.focus.single.error, 9)}


def test_labels_stay_apart_and_in_order():
    places = charts.separated([5.0, 1.0, 1.1, 1.05], 0.5, 0.0, 9.0)
    assert np.diff([places[1], places[3], places[2], places[0]]).min() >= 0.5 - 1e-12
    assert charts.separated([1.0, 3.0], 0.5, 0.0, 9.0) == [1.0, 3.0]
    assert charts.separated([1.0, 1.0, 1.0], 0.5, 1.0, 9.0) == [1.0, 1.5, 2.0]
    assert charts.separated([9.0, 9.0, 9.0], 0.5, 1.0, 9.0) == [8.0, 8.5, 9.0]


def test_reliability_has_both_predictors(summary, drawn):
    found = lines(drawn["reliability"])
    for label, bins in (
        ("last snapshot", summary.details.reliability_last),
        ("ensemble of 3", summary.details.reliability_ensemble),
    ):
        many = [bin for bin in bins if bin.examples >= 10]
        assert found[label] == ([100 * b.confidence for b in many], [100 * b.accuracy for b in many])
    drawn_lines = [line for line in drawn["reliability"].figure.axes[0].lines if line.get_gid() is None]
    _, *pale = [line for line in drawn_lines if line.get_label().startswith("_")]
    assert [line.get_alpha() for line in pale] == [0.4, 0.4]
    few = [100 * bin.accuracy for bin in summary.details.reliability_ensemble if bin.examples < 10]
    assert few
    assert list(pale[1].get_ydata()) == few


def test_a_single_example_is_counted_in_the_singular(summary, drawn):
    bins = (*summary.details.reliability_last, *summary.details.reliability_ensemble)
    counts = [hint.partition(": ")[2] for hint in drawn["reliability"].hints]
    assert counts == [{1: "1 image"}.get(one.examples, f"{one.examples} images") for one in bins]
    assert "1 image" in counts


def test_the_legend_of_the_reliability_is_not_on_the_line_of_100_percent(tmp_path):
    accurate = summarise([folders.made(tmp_path / "run", skill=50.0)])
    figure = page_charts.draw(accurate)["reliability"].figure
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().y0 >= figure.axes[0].get_window_extent().y1
    assert figure.axes[0].get_legend() is None


def test_every_legend_is_inside_its_chart(tmp_path):
    run = folders.with_curves(folders.made(tmp_path / "run", members=15))
    Combination(run.outputs().members, exit_threshold=0.8).save(run.path)
    baseline = folders.made(tmp_path / "standard", members=15, method="single")
    entries = {}
    for name, chart in page_charts.draw(summarise([run, baseline])).items():
        figure = chart.figure
        figure.draw_without_rendering()
        for legend in filter(None, [*figure.legends, *(axes.get_legend() for axes in figure.axes)]):
            box = legend.get_window_extent()
            assert 0 <= box.x0 < box.x1 <= figure.bbox.width, name
            assert 0 <= box.y0 < box.y1 <= figure.bbox.height, name
            entries[name] = len(legend.get_texts())
    assert entries == {"training": 2, "snapshots": 3, "last": 1, "exits": 3, "reliability": 2}


@pytest.mark.parametrize("name", ["training", "snapshots", "exits", "reliability"])
def test_lines_of_a_legend_differ_without_their_colour(drawn, name):
    for axes in drawn[name].figure.axes:
        shown = [line for line in axes.lines if line.get_gid() is None and not line.get_label().startswith("_")]
        looks = {(line.get_marker(), line.get_linestyle()) for line in shown}
        assert len(looks) == len(shown)


def test_inline_a_chart_is_named_themed_and_free_of_style(drawn):
    for name, chart in drawn.items():
        text = chart.inline()
        root = ElementTree.fromstring(text)
        assert (root.get("role"), root.get("class")) == ("img", "chart")
        assert (root[0].tag, root[0].text, root[1].tag, root[1].text) == (
            "title",
            chart.title,
            "desc",
            chart.description,
        )
        assert root.get("aria-labelledby") == f"{root[0].get('id')} {root[1].get('id')}"
        assert "style" not in text.replace("font-style", "")
        colours = {e.get(key) for e in root.iter() for key in ("fill", "stroke")} - {None, "none"}
        assert colours <= style.COLOURS.keys(), name
        known = {e.get("id") for e in root.iter()} - {None}
        assert all(identity.startswith(f"{name}-") for identity in known)
        references = {value for e in root.iter() for key, value in e.items() if key in ("href", "clip-path")}
        assert {re.fullmatch(r"(?:url\()?#([\w-]+)\)?", found)[1] for found in references} <= known
    assert {e.get("data-m") for e in ElementTree.fromstring(drawn["last"].inline()).iter()} == {None, "1", "2", "3"}


def test_every_hint_is_at_a_point_of_its_chart(drawn):
    hinted = {name: chart for name, chart in drawn.items() if chart.hints}
    assert set(hinted) == {"training", "snapshots", "last", "exits", "reliability"}
    for chart in hinted.values():
        (axes,) = (axes for axes in chart.figure.axes if any(line.get_gid() == "hints" for line in axes.lines))
        (points,) = (line for line in axes.lines if line.get_gid() == "hints")
        visible = [line for line in axes.lines if line.get_gid() in (None, "m") and len(line.get_xdata()) > 0]
        shown = {point for line in visible for point in zip(line.get_xdata(), line.get_ydata(), strict=True)}
        assert set(map(tuple, points.get_xydata().tolist())) <= shown
        titles = [e.find("title").text for e in ElementTree.fromstring(chart.inline()).iter("use") if len(e)]
        assert titles == list(chart.hints)
    assert drawn["last"].hints[1] == "the last 2 together: 27.50 %"


def test_the_ring_of_a_fixed_m_is_at_its_point(summary, drawn):
    root = ElementTree.fromstring(drawn["exits"].inline())
    rings = {int(e.get("data-exit")): (e.get("x"), e.get("y")) for e in root.iter("use") if e.get("data-exit")}
    assert sorted(rings) == list(range(1, 3 * 10 + 1))
    always = {e.find("title").text: (e.get("x"), e.get("y")) for e in root.iter("use") if len(e)}
    for m in (1, 2, 3):
        (place,) = (place for hint, place in always.items() if hint.startswith(f"always the last {m}:"))
        assert rings[10 * m] == place
    assert "stroke-opacity" not in "".join(ElementTree.tostring(e, "unicode") for e in root.iter("use") if not len(e))


def test_the_users_own_settings_change_nothing(summary, drawn):
    import matplotlib

    before = drawn["snapshots"].inline()
    assert drawn["snapshots"].inline() == before
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert page_charts.draw(summary)["snapshots"].inline() == before
        assert matplotlib.rcParams["font.size"] == 30
