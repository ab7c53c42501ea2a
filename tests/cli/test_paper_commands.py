"""Recording runs, and the paper's tables and figures, as a user types the commands."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

from snapens.cli import main
from snapens.lab.engine.pack import prepare, train
from snapens.lab.paper import cells as paper


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A folder with a finished run of a cell, and the cell, of 40 images and two snapshots."""
    monkeypatch.chdir(tmp_path)
    cell = paper.Cell("wrn32", "cifar100", "snapshot-0.2", tiny.recipe(), "table 1", "ensemble", 21.56)
    monkeypatch.setattr(paper, "_cells", lambda: {cell.name: cell})
    monkeypatch.setattr(paper, "_run_names", paper._run_names.__wrapped__)
    monkeypatch.setattr(paper, "IMAGES", {"tiny": (40, 20)})
    trainings = prepare([(tiny.recipe(seed=3), tmp_path / "run")], tiny.load, torch.device("cpu"))
    train(trainings)
    (tmp_path / "results").mkdir()
    return trainings[0].run


def test_a_finished_run_enters_the_ledger_and_the_list_shows_it(recorded, capsys):
    assert main(["paper", "record", "run", "--commit", "3f2a91c"]) == 0
    [path] = Path("results").glob("*-seed3.json")
    said = capsys.readouterr()
    assert said.out == f"{path}\nresults/differences.json\n"
    assert said.err == "run: commit not verified: the log of the run or git does not have it\n"
    assert json.loads(path.read_text())["origin"]["commit"] == "3f2a91c"
    assert main(["paper", "list"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("wrn32"))
    assert line.split()[1:6] == ["table", "1", "21.56", f"{100 * recorded.outputs().ensemble_errors[-1]:.2f}", "1"]


def test_outside_a_clone_a_run_is_recorded_only_in_a_ledger_that_is_named(recorded, capsys):
    Path("results").rmdir()
    assert main(["paper", "record", "run", "--commit", "3f2a91c"]) == 2
    assert "got results, which does not exist here: the ledger of snapens is the folder" in capsys.readouterr().err
    assert not Path("results").exists()
    assert main(["paper", "record", "run", "--commit", "3f2a91c", "--ledger", "mine"]) == 0
    assert {path.name for path in Path("mine").iterdir()} == {
        "wrn32-cifar100-snapshot-0.2-seed3.json",
        "differences.json",
    }


def test_a_run_outside_the_paper_is_recorded_too(recorded, tmp_path, capsys):
    train(prepare([(tiny.recipe(lr=0.3), tmp_path / "other")], tiny.load, torch.device("cpu")))
    assert main(["paper", "record", "run", "other", "--commit", "3f2a91c"]) == 0
    named = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert named[0] == "wrn32-cifar100-snapshot-0.2-seed3.json"
    assert re.fullmatch(r"tiny-net-tiny-snapshot-0\.3-4-epochs-[0-9a-f]{8}-seed0\.json", named[1])
    assert sorted(path.name for path in Path("results").iterdir()) == sorted(named)


def test_runs_before_one_that_cannot_be_recorded_are_recorded_and_named(recorded, tmp_path, capsys):
    [training] = prepare([(tiny.recipe(seed=4), tmp_path / "unfinished")], tiny.load, torch.device("cpu"))
    train([training], stop=lambda: training.completed > 12)
    training.close()
    assert main(["paper", "record", "run", "unfinished", "--commit", "3f2a91c"]) == 2
    said = capsys.readouterr()
    assert "run must be finished to be recorded, got unfinished" in said.err
    [path] = Path("results").glob("*.json")
    assert said.out == f"{path}\n"


def test_the_number_of_several_seeds_is_recorded_with_all_of_its_runs(recorded, tmp_path, monkeypatch, capsys):
    [cell] = paper.cells()
    two = replace(cell, method=f"{cell.method}-x2", seeds=2)
    monkeypatch.setattr(paper, "_cells", lambda: {cell.name: cell, two.name: two})
    train(prepare([(tiny.recipe(seed=2), tmp_path / "other")], tiny.load, torch.device("cpu")))
    assert main(["paper", "record", "other", "run", "--commit", "3f2a91c"]) == 0
    names = [f"wrn32-cifar100-snapshot-0.2-{of}" for of in ("seed2", "seed3", "x2-seeds2-3")]
    assert capsys.readouterr().out.split() == [f"results/{name}.json" for name in (*names, "differences")]
    assert all(Path("results", f"{name}.json").is_file() for name in names)


@pytest.mark.parametrize("runs", [[], ["run", "run"]])
def test_no_run_or_a_run_that_is_given_twice_is_rejected(recorded, capsys, runs):
    assert main(["paper", "record", *runs, "--commit", "3f2a91c"]) == 2
    message = f"runs must be run folders with different recipes, got {runs}: name one folder per recipe"
    assert message in capsys.readouterr().err
    assert not list(Path("results").iterdir())


@pytest.mark.parametrize("commit", ["3f2a", "nonsense", "3F2A91C", "3f2a91c ", "a" * 41, ""])
def test_a_commit_is_one_of_gits(recorded, capsys, commit):
    assert main(["paper", "record", "run", "--commit", commit]) == 2
    assert "commit must be 7 to 40 hexadecimal digits, got" in capsys.readouterr().err
    assert not list(Path("results").iterdir())


@pytest.mark.parametrize("number", ["1", "2", "3"])
@pytest.mark.parametrize(
    ("style", "mark"), [("terminal", "Table"), ("markdown", "|"), ("csv", ","), ("latex", r"\toprule")]
)
def test_every_table_is_printed_in_every_format(tmp_path, monkeypatch, capsys, number, style, mark):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "table", number, "--format", style]) == 0
    assert mark in capsys.readouterr().out


def test_a_terminals_width_is_kept_and_a_file_has_all_columns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for is_terminal, times in ((True, 2), (False, 1)):
        monkeypatch.setattr(sys.stdout, "isatty", lambda shown=is_terminal: shown)
        assert main(["paper", "table", "1"]) == 0
        text = capsys.readouterr().out
        assert text.count("ResNet-110 ") == times
        assert not is_terminal or max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("command", [["--help"], ["paper", "table", "1", "--format", "csv"], ["paper", "list"]])
def test_nothing_is_said_when_nobody_reads_on(tmp_path, command):
    reading, writing = os.pipe()
    os.close(reading)
    asked = [sys.executable, "-m", "snapens", *command]
    done = subprocess.run(asked, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    os.close(writing)
    assert done.returncode == 141
    assert "Error" not in done.stderr


@pytest.mark.parametrize("command", [["list"], ["table", "1"], ["figure", "6"]])
def test_a_mistyped_ledger_is_told_from_one_that_is_not_there_yet(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", *command, "--ledger", "resluts"]) == 2
    assert "ledger must be a folder, got resluts: check the path" in capsys.readouterr().err
    if command[0] == "figure":  # nothing could be drawn
        assert main(["paper", *command]) == 2
        assert "got results, which does not exist here: the ledger of snapens is the folder results/ of its" in (
            capsys.readouterr().err
        )
        assert not list(tmp_path.iterdir())
        return
    assert main(["paper", *command]) == 0
    assert "there is no ledger in results/: the ledger of snapens is in its repository" in capsys.readouterr().err
    Path("results").write_text("")
    assert main(["paper", *command]) == 2
    assert "ledger must be a folder, got results: check the path" in capsys.readouterr().err


def test_a_figure_is_written_as_its_name_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    assert main(["paper", "figure", "6"]) == 0
    assert capsys.readouterr().out == "figure-6.svg\n"
    assert Path("figure-6.svg").read_bytes().startswith(b"<?xml")
    assert main(["paper", "figure", "6", "--out", "new/six.png"]) == 0
    assert Path("new/six.png").read_bytes().startswith(b"\x89PNG")
    assert main(["paper", "figure", "6", "--out", "six.pdf"]) == 2
    assert "out must end in .svg or .png, got six.pdf" in capsys.readouterr().err


def test_a_figure_without_measurements_names_the_networks_that_have_some(tmp_path, capsys):
    ledger = str(Path(__file__).parents[2] / "results")
    out = ["--out", str(tmp_path / "six.svg"), "--ledger", ledger]
    assert main(["paper", "figure", "6", *out]) == 0
    err = capsys.readouterr().err
    assert err.startswith("nothing is measured for densenet100, which figure 6 shows: use --network ")
    assert "--network wrn32" in err
    assert main(["paper", "figure", "6", "--network", "wrn32", *out]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table", "9"], "snapens: unknown table '9': choose from 1, 2, 3\n"),
        (["figure", "7", "--ledger", "."], "snapens: unknown figure '7': choose from 2, 3, 4, 5, 6, S\n"),
    ],
)
def test_a_number_that_the_paper_does_not_have_is_rejected(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", *arguments]) == 2
    assert capsys.readouterr().err == message


def test_the_star_is_explained_only_where_there_is_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text, starred in (("densenet40-cifar10-single", True), ("wrn32-cifar100-snapshot", False)):
        assert main(["paper", "list", text]) == 0
        assert ("*" in capsys.readouterr().out) is starred
