"""The notebook runs from top to bottom, and the outputs stored in it are those of a complete execution."""

import base64
import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples/quickstart.ipynb"
CONTENT = json.loads(NOTEBOOK.read_text())
CODE = [cell for cell in CONTENT["cells"] if cell["cell_type"] == "code"]
STORED = [output for cell in CODE for output in cell["outputs"]]
PICTURES = [output["data"]["image/png"] for output in STORED if "data" in output]


def text_of(outputs):
    return "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")


def assert_sensible(printed):
    """What the text of the notebook says about its numbers."""
    assert re.findall(r"snapshot of step ([\d,]+), ", printed) == ["310", "620", "930", "1,240"]
    one, together = map(float, re.search(r"last snapshot ([\d.]+)%, all four together ([\d.]+)%", printed).groups())
    assert together < one < 40  # of 26 classes: chance is 96
    assert 1 < float(re.search(r"^temperature ([\d.]+)", printed, re.MULTILINE)[1]) < 1.5
    error, used = map(float, re.search(r"^test error ([\d.]+)% with ([\d.]+) of 4 members", printed, re.M).groups())
    assert error < one
    assert used < 3


def test_its_cells_run_in_order_and_draw_the_stored_number_of_pictures(tmp_path, monkeypatch, capsys):
    matplotlib = pytest.importorskip("matplotlib")
    plt = pytest.importorskip("matplotlib.pyplot")
    shown = []

    def show():  # as in Jupyter: the open figures are drawn and closed
        for number in plt.get_fignums():
            plt.figure(number).canvas.draw()
            shown.append(number)
        plt.close("all")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", show)
    namespace = {"__name__": "__main__"}
    with matplotlib.rc_context({"backend": "agg"}):
        for number, cell in enumerate(CODE, 1):
            exec(compile("".join(cell["source"]), f"cell {number} of {NOTEBOOK.name}", "exec"), namespace)
    assert len(shown) == len(PICTURES) == 6
    assert not plt.get_fignums()
    assert_sensible(capsys.readouterr().out)


def test_its_stored_outputs_are_complete_and_contain_no_error():
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    assert {output["output_type"] for output in STORED} == {"stream", "display_data"}
    assert {output["name"] for output in STORED if output["output_type"] == "stream"} == {"stdout"}
    assert all(base64.b64decode("".join(picture)).startswith(b"\x89PNG") for picture in PICTURES)
    assert_sensible(text_of(STORED))


def test_it_is_small_enough_for_a_web_page():
    assert NOTEBOOK.stat().st_size < 400_000
