"""Figures 2 to 6 and the supplement: they show what the ledger holds, and panels without measurements say so."""

import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import measurements
import numpy as np
import pytest

from snapens.errors import ArgumentError, SnapensError
from snapens.lab.paper import cells as paper
from snapens.lab.paper import figures as paper_figures
from snapens.report import style
from snapens.report.figures import figure

pytest.importorskip("matplotlib")
PANELS = {"2": 1, "3": 4, "4": 3, "5": 8, "6": 2, "S": 28}


@pytest.fixture(scope="module")
def everything():
    return measurements.everything(2)


def words(drawn):
    """All that is written in a figure."""
    found = ElementTree.fromstring(style.saved(drawn, "svg")).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()) for text in found]


def lines(axes):
    return {line.get_label(): (np.array(line.get_xdata()), np.array(line.get_ydata())) for line in axes.lines}


@pytest.mark.parametrize(("name", "panels"), PANELS.items())
def test_nothing_measured_gives_frames_that_say_so(name, panels):
    drawn = figure(name, {})
    assert len(drawn.axes) == panels
    assert words(drawn).count("not measured yet") == panels
    assert style.saved(drawn, "png").startswith(b"\x89PNG")


@pytest.mark.parametrize("name", PANELS)
def test_everything_measured_leaves_no_frame_empty(name, everything):
    drawn = figure(name, everything)
    assert "not measured yet" not in words(drawn)
    assert "commit 3f2a91c, measured on NVIDIA H200" in words(drawn)
    assert not any("cells" in text for text in words(drawn))


@pytest.mark.parametrize("name", PANELS)
def test_each_cell_alone_can_be_drawn(name):
    for cell in {cell for panel in paper_figures.figure(name).panels()[-4:] for cell in panel.cells[-3:]}:
        network = cell.network if name == "S" else None
        drawn = words(figure(name, measurements.of_cells([cell]), network))
        is_mere_line = name in ("3", "S") and cell.recipe.method.kind == "single"
        assert ("commit 3f2a91c, measured on NVIDIA H200" in drawn) is not is_mere_line


@pytest.mark.parametrize("name", PANELS)
def test_the_same_ledger_gives_the_same_bytes(name, everything):
    network = "densenet100" if name == "S" else None
    first, second = (figure(name, entries, network) for entries in (everything, dict(reversed(everything.items()))))
    for kind in ("svg", "png"):
        assert style.saved(first, kind) == style.saved(second, kind) == style.saved(first, kind)
    assert b"<dc:date>" not in style.saved(first, "svg")


def test_bytes_do_not_depend_on_the_process_or_the_users_settings(tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nsvg.hashsalt: other\nlines.linewidth: 9\n")
    code = (
        "import sys; from snapens.report.figures import *\nsys.stdout.buffer.write(style.saved(figure('3', {}), 'svg'))"
    )
    made = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=tmp_path).stdout
    assert made == style.saved(figure("3", {}), "svg")


def test_figure_2_draws_both_losses_and_a_dotted_line_at_each_snapshot(everything):
    (axes,) = figure("2", everything).axes
    cyclic = everything["densenet100-cifar10-snapshot-0.1-seed0"]
    x, y = lines(axes)["cycles"]
    assert (tuple(x), tuple(y)) == (cyclic.losses.epoch, cyclic.losses.loss)
    assert tuple(lines(axes)["standard schedule"][1]) == everything["densenet100-cifar10-single-seed0"].losses.loss
    dotted = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 2]
    assert dotted == [50, 100, 150, 200, 250, 300]


def test_figure_3_draws_means_over_seeds_and_the_single_models_line(everything):
    drawn = figure("3", everything)
    axes = drawn.axes[3]  # CIFAR-100, 0.2
    runs = [everything[f"densenet100-cifar100-snapshot-0.2-seed{seed}"] for seed in (0, 1)]
    (points,) = (line for line in axes.lines if line.get_marker() == "o")
    heights = list(points.get_ydata())
    assert heights == pytest.approx(np.mean([run.last_percent for run in runs], axis=0))
    single = [everything[f"densenet100-cifar100-single-seed{seed}"].last_percent[0] for seed in (0, 1)]
    assert lines(axes)["single model"][1] == pytest.approx(np.mean(single))
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [
        f"{data}\nα₀ = {lr}, n = 2" for lr in ("0.1", "0.2") for data in ("CIFAR-10", "CIFAR-100")
    ]
    assert axes.get_ylim()[0] < min(heights)
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [f"single model {np.mean(single):.2f}", "each seed"]
    seeds = [line.get_ydata() for line in axes.lines if line.get_marker() == "_"]
    assert [tuple(errors) for errors in seeds] == [run.last_percent for run in runs]
    assert [text.get_text() for text in axes.texts] == [f"{height:.2f}" for height in heights]
    for text, point in zip(axes.texts, axes.transData.transform(points.get_xydata()), strict=True):
        assert legend.get_window_extent().y0 > text.get_window_extent().y0 > point[1]


@pytest.mark.parametrize(("name", "apart"), [("3", 2), ("S", 1)])
def test_panels_that_differ_in_the_rate_alone_have_one_scale(name, apart, everything):
    axes = figure(name, everything, "densenet100").axes
    assert len(axes) == 4
    for k in range(0, 4, 2) if apart == 1 else range(2):
        assert axes[k].get_ylim() == axes[k + apart].get_ylim()
    assert axes[0].get_ylim() != axes[3].get_ylim()


def test_figure_4_draws_budgets_and_as_many_models(everything):
    budget, _, models = figure("4", everything).axes
    x, y = lines(budget)["Snapshot Ensemble, α₀ = 0.1"]
    assert list(x) == [60, 120, 180, 240, 300]
    full = [everything[f"densenet40-cifar10-snapshot-0.1-seed{seed}"].last_percent[-1] for seed in (0, 1)]
    assert y[-1] == pytest.approx(np.mean(full))
    assert list(lines(budget)["SingleCycle Ensemble, α₀ = 0.1"][0]) == [60, 120, 180, 240, 300]
    x, y = lines(models)["m fully trained models"]
    assert list(x) == [1, 2, 3, 4, 5, 6]
    assert list(y[1:]) == pytest.approx([24 - seeds / 2 + 1 / 16 for seeds in range(2, 7)])
    assert list(lines(models)["last m snapshots of one run, α₀ = 0.2"][0]) == [1, 2, 3, 4, 5, 6]


def test_figure_5_draws_both_statistics_of_every_earlier_snapshot(everything):
    axes = figure("5", everything).axes
    found = everything["densenet40-cifar10-snapshot-0.2-seed0"].between
    for panel, errors in ((axes[0], "interpolated_percent"), (axes[4], "estimated_percent")):
        drawn = [(tuple(line.get_xdata()), tuple(line.get_ydata())) for line in panel.lines]
        assert drawn == [(found.last_share, getattr(line, errors)) for line in found.lines]
        assert [text.get_text() for text in panel.texts][:5] == ["1", "2", "3", "4", "5"]
    assert axes[2].get_title(loc="left").startswith("CIFAR-10\nno cycles")
    assert [len(panel.texts) for panel in axes[:5]] == [5, 5, 5, 5, 6]
    assert axes[4].texts[5].get_text() == f"from {found.estimated_from}"


def test_figure_5_without_curves_is_not_measured_though_the_run_is():
    drawn = figure("5", measurements.of_cells(paper.cells(), between=False))
    assert words(drawn).count("not measured yet") == 8
    assert not any("seed" in text for text in words(drawn))


def test_figure_6_writes_the_numbers_into_the_squares(everything):
    axes = figure("6", everything).axes
    matrix = np.array(everything["densenet100-cifar100-snapshot-0.2-seed0"].correlation)
    apart = ~np.eye(6, dtype=bool)
    assert [text.get_text() for text in axes[0].texts] == [f"{value:.3f}" for value in matrix[apart]]


def test_the_panels_of_figure_6_have_one_scale():
    entries = measurements.of_cells(paper.find(f"densenet100-cifar100-{of}") for of in ("snapshot-0.2", "nocycle"))
    name = "densenet100-cifar100-single-seed0"
    low = tuple(tuple(0.6 + value / 10 for value in row) for row in entries[name].correlation)
    entries[name] = replace(entries[name], correlation=low)
    shades = [
        (float(text.get_text()), patch.get_alpha())
        for axes in figure("6", entries).axes
        for text, patch in zip(axes.texts, axes.patches, strict=True)
    ]
    alphas = [alpha for _, alpha in sorted(shades)]
    assert len({value for value, _ in shades}) > 5
    assert alphas == pytest.approx(sorted(alphas), abs=1e-3)


def test_the_supplement_draws_snapshots_alone_the_first_together_and_the_single_model(everything):
    drawn = figure("S", everything)
    titles = [axes.get_title(loc="left") for axes in drawn.axes]
    axes = drawn.axes[titles.index("Wide-ResNet-32, SVHN\nα₀ = 0.2, n = 2")]
    runs = [everything[f"wrn32-svhn-snapshot-0.2-seed{seed}"] for seed in (0, 1)]
    assert lines(axes)["each snapshot alone"][1] == pytest.approx(np.mean([r.snapshot_percent for r in runs], axis=0))
    assert lines(axes)["the first m together"][1] == pytest.approx(np.mean([r.first_percent for r in runs], axis=0))
    assert "single model" in lines(axes)


def test_a_panel_says_how_much_of_it_is_there():
    entries = measurements.of_cells([paper.find("densenet40-cifar10-snapshot-0.1")], 3)
    titles = [axes.get_title(loc="left") for axes in figure("4", entries).axes]
    assert titles == ["CIFAR-10\nby epochs, n = 3, 1 of 10 cells", "CIFAR-100\nby epochs", "CIFAR-100\nby models"]


def test_another_network_is_drawn_only_when_asked_for_and_is_named():
    entries = measurements.of_cells(cell for cell in paper.cells() if cell.name.startswith("wrn32"))
    assert words(figure("3", entries)).count("not measured yet") == 4
    for name in ("2", "3", "5", "6"):
        drawn = figure(name, entries, network="wrn32")
        assert "not measured yet" not in words(drawn)
        own = "DenseNet-40" if name == "5" else "DenseNet-100"
        title = " ".join(drawn.get_suptitle().split())
        assert title.startswith(f"Figure {name}, Wide-ResNet-32 (in the paper {own}): ")
        drawn.draw_without_rendering()
        assert drawn._suptitle.get_window_extent().x1 <= drawn.bbox.x1
    assert len(figure("S", entries, network="wrn32").axes) == 8
    assert figure("3", {}, network="densenet100").get_suptitle() == figure("3", {}).get_suptitle()
    assert words(figure("4", entries, network="wrn32")).count("not measured yet") == 0


def test_only_panels_with_snapshots_are_drawn_when_asked_for_what_is_measured():
    names = ["wrn32-cifar10-single", "wrn32-cifar100-single", "wrn32-cifar100-snapshot-0.2"]
    entries = measurements.of_cells(map(paper.find, names))
    for name in ("3", "S"):
        (axes,) = figure(name, entries, network="wrn32", measured_only=True).axes
        assert axes.get_title(loc="left").endswith("CIFAR-100\nα₀ = 0.2, n = 1")
    assert len(figure("3", {}, measured_only=True).axes) == 4  # rather than none


def test_a_figure_with_an_incomplete_last_row_shows_no_empty_axes():
    names = [f"wrn32-{data}-snapshot-{lr}" for data in ("cifar10", "cifar100") for lr in ("0.1", "0.2")]
    cells = map(paper.find, [*names, "wrn32-svhn-snapshot-0.1"])
    drawn = figure("S", measurements.of_cells(cells), measured_only=True)
    assert [axes.get_visible() for axes in drawn.axes] == [True] * 5 + [False] * 3  # two rows of four
    assert drawn.axes[4].get_title(loc="left").startswith("Wide-ResNet-32, SVHN\n")


@pytest.mark.parametrize("panels", [1, 2])
def test_the_legend_is_inside_the_figure_and_does_not_cover_the_origin(panels):
    datasets = ("cifar10", "cifar100")[2 - panels :]
    cells = [paper.find(f"densenet40-{data}-{method}") for data in datasets for method in ("snapshot-0.2", "single")]
    drawn = figure("S", measurements.of_cells(cells), measured_only=True)
    assert len(drawn.axes) == panels
    (legend,), origin = drawn.legends, drawn._supxlabel
    assert len(legend.get_texts()) == 3
    below, around = legend.get_window_extent(), origin.get_window_extent()
    assert drawn.bbox.x0 < below.x0 < below.x1 < drawn.bbox.x1
    visible = around.y1 - around.height / len(origin.get_text().split("\n"))  # empty lines follow it
    assert below.x0 > around.x1 or below.y1 < visible
    assert min(axes.get_window_extent().height for axes in drawn.axes) > 70 * drawn.dpi / 72


@pytest.mark.parametrize("name", ["4", "S"])
def test_no_point_lies_under_the_legend_of_its_panel(name):
    cells = [paper.find(f"densenet40-cifar100-{method}") for method in ("snapshot-0.2", "single", "singlecycle")]
    drawn = figure(name, measurements.of_cells(cells), measured_only=True)
    for axes in drawn.axes:
        covered = axes.get_legend().get_window_extent()
        assert drawn.bbox.x0 < covered.x0 < covered.x1 < drawn.bbox.x1
        for line in axes.lines:
            if line.get_marker() != "None":
                points = line.get_transform().transform(line.get_xydata())
                assert not any(covered.contains(*point) for point in points)


def test_names_are_written_as_they_are(everything):
    origin = replace(measurements.ORIGIN, device="$x_{$ <b>&amp; \\frac % ]]>", commit="$^$")
    drawn = figure("3", measurements.of_cells(paper.cells(), origin=origin))
    assert any("$x_{$ <b>&amp; \\frac % ]]>" in text for text in words(drawn))
    style.saved(drawn, "png")
    crowd = [replace(measurements.ORIGIN, device=f"device {k}" * 20, commit=f"commit{k}" * 5) for k in range(5)]
    runs = [measurements.entry(cell.recipe, made) for cell, made in zip(paper.cells()[:40:8], crowd, strict=True)]
    assert max(map(len, words(figure("S", {run.name: run for run in runs})))) < 120


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: figure("7", {}), "unknown figure '7': choose from 2, 3, 4, 5, 6, S"),
        (
            lambda: figure("3", {}, network="resnet50"),
            "network must be one with cells of the paper for figure 3, got",
        ),
        (lambda: figure("S", {}, network="resnet50"), "choose from resnet110, wrn32, densenet40, densenet100$"),
    ],
)
def test_what_cannot_be_drawn_is_rejected(ask, message):
    with pytest.raises(ArgumentError, match=message):
        ask()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it fails
    with pytest.raises(SnapensError, match=r"matplotlib must be installed .*: pip install .*\[report\]"):
        figure("3", {})
