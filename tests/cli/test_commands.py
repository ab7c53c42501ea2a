"""The command line itself: help, version, mistyped commands, what is imported, and from where."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import snapens
from snapens.cli import main, messages

COMMANDS = ["demo", "train", "sweep", "predict", "evaluate", "combine", "distill", "export", "report", "paper", "bench"]
PAPER = ["list", "run", "record", "table", "figure"]
BENCH = ["train", "predict"]
ALL = [
    [],
    *([name] for name in COMMANDS),
    *(["paper", name] for name in PAPER),
    *(["bench", name] for name in BENCH),
]


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_help_text_fits_80_columns_and_says_what_the_command_is_for(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    usage, *lines = shown.splitlines()  # tyro does not wrap the usage
    assert usage.startswith(" ".join(["usage: snapens", *command]) + " ")
    assert max(map(len, lines)) <= 80
    assert "default: None" not in shown
    assert "default: False" not in shown


def test_the_help_names_every_command_and_the_version_flag(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"• {name}" in shown for name in COMMANDS)
    assert "--version" in shown
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"snapens {snapens.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["trian"], "snapens: unknown command 'trian': did you mean train?\n"),
        (["paper", "lst"], "snapens: unknown command 'lst': did you mean list?\n"),
        (
            ["xyzzy"],
            "snapens: unknown command 'xyzzy': "
            "choose from bench, combine, demo, distill, evaluate, export, paper, predict, report, sweep, train\n",
        ),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(capsys, typed, message):
    assert main(typed) == 2
    assert capsys.readouterr().err == message


def test_a_mistyped_flag_gets_a_suggestion(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "--epocs", "3"])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert "Unrecognized options: --epocs" in shown
    assert "--epochs INT" in shown


@pytest.mark.parametrize("command", [["--help"], ["export", "--help"], ["paper", "list"]], ids=" ".join)
def test_help_and_the_list_of_cells_do_not_load_torch(command, tmp_path):
    code = f"""
import sys
from snapens.cli import main
try:
    main({command})
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=tmp_path)


SHADOWED = ("typing", "dataclasses", "signal", "tyro", "rich", "numpy", "torch", "jinja2", "matplotlib", "json", "tyro")


def run(folder, *command):
    environment = {**os.environ, "PYTHONPATH": str(Path(snapens.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "snapens", *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )


@pytest.fixture
def hostile(tmp_path):
    """A folder whose modules have the names of packages, and say so if they are imported."""
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text(f"open('imported', 'a').write({name!r})\nraise SystemExit('imported')")
    return tmp_path


def test_no_command_imports_modules_from_the_current_folder(hostile):
    assert run(hostile, "paper", "list").returncode == 0
    assert "holds recipe.json" in run(hostile, "report", ".").stderr
    assert not (hostile / "imported").exists()


def test_a_network_of_the_users_own_is_imported_from_the_current_folder_and_nothing_else_is(hostile):
    (hostile / "mine.py").write_text("open('mine', 'w').close()\nlinear = None")
    done = run(hostile, "train", "--network", "mine:linear", "--dataset", "glyphs", "--device", "cpu")
    assert "network must be module:callable, got 'mine:linear', which is a NoneType" in done.stderr
    assert (hostile / "mine").exists()
    assert not (hostile / "imported").exists()


@pytest.mark.parametrize(
    ("arguments", "suggested", "others"),
    [
        (["train", "--epoch", "3"], ["--epochs INT", "run snapens train --help"], ["sweep", "distill"]),
        (
            ["paper", "run", "cell", "--seeds", "1"],
            ["--seed INT [INT ...]", "run snapens paper run --help"],
            ["demo", "train"],
        ),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_mistyped_option_is_answered_with_the_options_of_this_command_alone(capsys, arguments, suggested, others):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert all(text in shown for text in suggested)
    assert not any(f"snapens {command}" in shown for command in others)


def test_a_number_and_its_percent_sign_are_on_one_line(capsys, monkeypatch):
    for columns in range(20, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        messages.paragraphs("Test error of one model with the standard schedule: 12.34 %. Ensemble: 10.00 %.\nNext.")
        shown = capsys.readouterr().out
        assert "\n%" not in shown
        assert " ".join(shown.split()) == (
            "Test error of one model with the standard schedule: 12.34 %. Ensemble: 10.00 %. Next."
        )
