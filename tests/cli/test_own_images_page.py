"""The code and the commands of docs/how-to/own-images.md and resume.md run in order, with tiny networks and budgets."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from snapens.cli import main, training
from snapens.lab.records.run import Run

PAGES = Path(__file__).parents[2] / "docs/how-to"
QUICK = ["--epochs", "2", "--cycles", "2", "--batch", "16", "--device", "cpu"]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A working folder with photos of two classes, and a new photo."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in [*(f"photos/{kind}/{k}" for kind in ("cat", "dog") for k in range(12)), "new/a"]:
        path = Path(f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (70, 80, 3), dtype=np.uint8)).save(path)


def commands(page):
    """The arguments of the calls of snapens on a page."""
    found = re.findall(r"^snapens (.*)$", (PAGES / page).read_text().replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(command, comments=True) for command in found]


def test_the_code_and_the_commands_for_own_data_run(photos, monkeypatch, capsys):
    monkeypatch.setattr(training, "with_report", lambda paths, show: show())  # the page's own command writes one
    names = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", (PAGES / "own-images.md").read_text(), re.DOTALL):
        exec(block, names)
    ran = []
    for command in commands("own-images.md"):
        if "--preset" in command or "--pretrained" in command:  # these need a large network and a download
            continue
        small = ["--network", "mynets:tiny"] if "photos/" in command else []
        own = ["--import-network"] if command[0] == "predict" else []  # of runs with the small network
        quick = [*QUICK, *small] if command[0] == "train" else own
        assert main([*command, *quick]) == 0, command
        ran.append(command[0])
    assert ran == ["train", "combine", "report", "predict", "train", "train", "predict", "train"]
    assert Run("runs/photos").outputs("held_out").labels.shape == (2,)
    assert Run("runs/arrays").data["classes"] == ["plain", "shaded"]
    assert "new.npz[2]" in capsys.readouterr().out


def test_the_commands_to_resume_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, again = commands("resume.md")
    assert again == [*first, "--resume"]
    quick = ["--epochs", "1", "--cycles", "1", "--device", "cpu"]
    assert main([*first, *quick]) == 0
    assert main([*again, *quick]) == 0
    assert "is already finished" in capsys.readouterr().err
