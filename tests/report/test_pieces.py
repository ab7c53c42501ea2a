"""Charts and tables as files of their own."""

import csv
import json
from xml.etree import ElementTree

import folders
import pytest

from snapens.errors import ArgumentError, StoreError
from snapens.report.pieces import pieces, tables
from snapens.report.summary import summarise

CHARTS = {
    "training",
    "snapshots",
    "last",
    "reliability",
    "exits",
    "correlation",
    "disagreement",
    "interpolated",
    "estimated",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [folders.with_curves(folders.made(folder / "a")), folders.made(folder / "b", method="single")]


def test_charts_are_images(runs, tmp_path):
    svg, png = (pieces(runs, tmp_path / kind, kind) for kind in ("svg", "png"))
    assert {path.stem for path in svg} == {path.stem for path in png} == CHARTS
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in png)
    assert all(ElementTree.fromstring(path.read_bytes()).tag.endswith("svg") for path in svg)
    before = [path.read_bytes() for path in (*svg, *png)]
    again = [pieces(runs, tmp_path / kind, kind) for kind in ("svg", "png")]
    assert [path.read_bytes() for paths in again for path in paths] == before


def test_tables_hold_the_same_numbers_as_json_and_csv(runs, tmp_path):
    wanted = tables(summarise(runs))
    for path in pieces(runs, tmp_path, "json"):
        assert json.loads(path.read_text()) == wanted[path.stem]
    for path in pieces(runs, tmp_path, "csv"):
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        shown = [{key: "" if value is None else str(value) for key, value in row.items()} for row in wanted[path.stem]]
        assert rows == shown
    assert len(wanted["exits"]) == 3 * 10
    assert wanted["answer"][-1]["error"] == runs[0].outputs().ensemble_errors[-1]
    assert [row["predictor"] for row in wanted["answer"]] == ["standard schedule", "last snapshot", "ensemble"]


def test_names_that_a_spreadsheet_would_take_for_formulas_are_neutralised_in_csv_alone(tmp_path):
    names = ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "-7", "−", "a", "b", "c"]
    run = folders.made(tmp_path / "=HYPERLINK()", classes=names)
    found = {}
    for path in pieces([run], tmp_path / "out", "csv"):
        with open(path, newline="", encoding="utf-8") as file:
            found[path.stem] = list(csv.DictReader(file))
    assert {row["run"] for row in found["answer"]} == {"'=HYPERLINK()"}
    shown = {row["name"] for row in found["classes"]}
    harmless = dict(zip(names, ["'=1+1", "'+1+1", "'-2+3", "'@SUM(A1)", "'\t=1", *names[5:]], strict=True))
    wanted = tables(summarise([run]))
    assert shown == {harmless[row["name"]] for row in wanted["classes"]}
    assert [row["change"] for row in found["classes"]] == [str(row["change"]) for row in wanted["classes"]]


def test_differences_are_paired_and_of_the_run_that_the_report_is_about(runs):
    wrong = {}
    for run in runs:
        outputs = run.outputs()
        p = folders.softmax(outputs)
        for predictor, members in (("last snapshot", p[-1:]), ("ensemble", p)):
            wrong[run.path.name, predictor] = members.mean(0).argmax(-1) != outputs.labels
    rows = tables(summarise(runs))["differences"]
    pairs = [(row["predictor"], row["run"], row["other"]) for row in rows]
    others = [("a", "last snapshot"), ("a", "ensemble"), ("b", "last snapshot"), ("b", "ensemble")]
    assert pairs == [
        (mine, *other) for mine in ("last snapshot", "ensemble") for other in others if other != ("a", mine)
    ]
    for row in rows:
        of_each = wrong["a", row["predictor"]].astype(float) - wrong[row["run"], row["other"]]
        assert row["difference"] == pytest.approx(of_each.mean())
        assert row["standard_error"] == pytest.approx(of_each.std() / len(of_each) ** 0.5)
    assert any(row["difference"] for row in rows)


def test_an_unknown_format_and_a_place_that_cannot_be_written_are_named(runs, tmp_path):
    with pytest.raises(ArgumentError, match=r"unknown format 'pgn': did you mean png\?"):
        pieces(runs, tmp_path, "pgn")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="could not be written"):
        pieces(runs, tmp_path / "file", "csv")
