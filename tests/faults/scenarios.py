"""What is done to a run folder while faults happen, and what can be read from it before and after."""

import math
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import tiny
import torch

from snapens import Ensemble, Snapshots
from snapens.combination import Combination
from snapens.lab.engine import training as training_module
from snapens.lab.engine.pack import prepare
from snapens.lab.records import gallery
from snapens.lab.records.curves import Between, Line
from snapens.lab.records.run import Run, State
from snapens.outputs import Outputs
from snapens.report import page, page_charts
from snapens.storage import durable

CPU = torch.device("cpu")
RECIPE = tiny.recipe(cycles=2, epochs=2, method="grow", pattern=("fresh", "warm"), dropout=0.3, held_out=8, seed=5)
"""8 steps on 32 images; snapshots at 4 and 8."""
CURVES, OTHER_CURVES = (
    Between((0.0, 0.5, 1.0), (Line(1, (3.0, 2.0, 1.0), (3.0, 2.0, 1.0)),), images) for images in ("none", "others")
)
LABELS = np.arange(6) % 4


def weights(step):
    return {"frozen": torch.ones(50), "weight": torch.full((1000,), float(step))}


def rows(seed):
    """Log-probabilities (6 examples, 4 classes)."""
    return np.log(np.random.default_rng(seed).dirichlet(np.ones(4), 6)).astype(np.float16)


def trained(path, recipe=RECIPE, until=None):
    """Start or resume a run; states are saved after every two steps."""
    [training] = prepare([(recipe, path)], tiny.load, CPU, resume=True, state_seconds=-1.0)
    bursts = {"_BURST_STEPS": 2, "_BURST_SECONDS": math.inf}  # however slow the machine is
    with closing(training), patch.multiple(training_module, **bursts):
        while not training.finished and (until is None or training.completed < until):
            training.advance()


def look(path):
    """All that a folder holds and that is not a time; an error of ours if it cannot be read."""
    run = Run(path)
    found = {"steps": {step: contents(run.snapshots.load(step)) for step in run.snapshots.steps}}
    if run.exists:
        found |= {"recipe": run.recipe, "data": run.data, "finished": run.finished, "log": logged(run)}
        state, curves, images = run.state(), run.curves(), gallery.read(run)
        found["state"] = state and (state.completed, contents(state.tensors))
        found["curves"], found["gallery"] = curves, images and (images.indices.tolist(), images.pixels.tobytes())
    for part in ("test", "held_out"):
        if durable.exists(path / "outputs" / f"{part}.json") and run.snapshots.steps:
            outputs = Outputs.load(path, part)
            found[part] = outputs.steps, outputs.log_probabilities.tobytes(), outputs.labels.tolist()
    if durable.exists(path / "combination.json"):
        found["combination"] = Combination.load(path)
    if durable.exists(path / "report.html"):
        found["report"] = durable.contents(path / "report.html", 1 << 28)
    return found


def contents(tensors):
    return {name: (tensor.dtype, tensor.shape, tensor.numpy().tobytes()) for name, tensor in tensors.items()}


def logged(run):
    timed = {"seconds", "images_per_second"}
    return [{name: value for name, value in line.items() if name not in timed} for line in run.log()]


# folders


def snapshots(path):
    """Three snapshots of a user's own loop."""
    store = Snapshots(path)
    store.open_to_write()
    with closing(store):
        for step in (4, 8, 12):
            store.commit(step, weights(step))


def members(path, *steps):
    return tuple((Snapshots(path).identity["run"], step) for step in steps)


def loop(path):
    """The same, with outputs and a combination."""
    snapshots(path)
    Outputs(members(path, 4, 8, 12), np.stack([rows(step) for step in (4, 8, 12)]), LABELS).save(path, "test")
    Combination.last(2).save(path)


def begun(path):
    """A run of the lab, stopped before its last snapshot."""
    trained(path, until=6)


def finished(path):
    """A finished run of the lab with all that a folder can hold."""
    trained(path)
    Run(path).keep_curves(CURVES)
    Combination.last(2).save(path)


# what happens in them


@dataclass(frozen=True)
class Scenario:
    """An operation on a folder that `make` prepares; `opened` is done beforehand, without faults."""

    make: Callable[[Path], None]
    act: Callable[[Any], Any]
    opened: Callable[[Path], Any] = lambda path: path
    whole: bool = True
    """Whether an interrupted operation leaves the folder as it was before or as it would be afterwards."""


def rewound(path):
    """A writer that goes back to step 8: its next commit replaces, shares and removes."""
    store = Snapshots(path)
    store.open_to_write(resume=True)
    store.rewind(8)
    return store


def commit(store):
    if store.steps != (4, 8, 11):
        store.commit(11, weights(11))


def resume_loop(path):
    store = Snapshots(path)
    with closing(store):
        store.open_to_write(resume=True)
        store.rewind(12)
        return {step: contents(store.load(step)) for step in store.steps}


def save_outputs(path):
    Outputs(members(path, 4, 8, 12), np.stack([rows(-step) for step in (-1, -2, -3)]), LABELS).save(path, "test")


def append_outputs(path):
    Outputs(members(path, 8), rows(3)[None], LABELS).append(path, "test")


def resumed(path):
    run = Run(path)
    run.state()
    return run


def save_state(run):
    run.save(State(7, {"weight": torch.arange(20.0)}, {"seconds": 1.0}))


def note(run):
    if not any(line["event"] == "noted" for line in run.log()):
        run.note("noted", step=7)


def keep_gallery(run):
    gallery.keep(run, lambda indices: np.full((len(indices), 2, 2, 3), 7, np.uint8))


def predict(path):
    torch.manual_seed(0)
    network = tiny.net(classes=4, channels=3)
    return Ensemble.load(path, network)(torch.randn(5, 3, 8, 8)).numpy().tobytes()


def charts(summary, draw=page_charts.draw, drawn={}):  # noqa: B006
    """The charts of the first page: drawing them takes long and reads nothing."""
    for name, chart in ({} if drawn else draw(summary)).items():
        drawn[name] = SimpleNamespace(inline=partial(str, chart.inline()))
    return drawn


def render(path):
    with patch.object(page_charts, "draw", charts):
        return page.render([Run(path)])


WRITING = {
    "a commit": Scenario(snapshots, commit, rewound),
    "saving outputs": Scenario(loop, save_outputs),
    "appending outputs": Scenario(loop, append_outputs),
    "saving a combination": Scenario(loop, Combination.last(1).save),
    "saving a state": Scenario(begun, save_state, resumed),
    "noting an event": Scenario(begun, note, Run),
    "forgetting events": Scenario(begun, lambda run: run.forget(4), Run),
    "keeping curves": Scenario(finished, lambda run: run.keep_curves(OTHER_CURVES), Run),
    "keeping a gallery": Scenario(finished, keep_gallery, Run),
    "writing a report": Scenario(finished, lambda path: durable.write(path / "report.html", b"<p>")),
    "starting a run": Scenario(lambda path: None, lambda path: trained(path, until=2), whole=False),
    "resuming a run": Scenario(begun, trained, whole=False),
}
READING = {
    "opening a loop to resume": Scenario(loop, resume_loop),
    "reading the folder of a loop": Scenario(loop, look),
    "reading a run": Scenario(finished, look),
    "predicting with an ensemble": Scenario(finished, predict),
    "rendering a report": Scenario(finished, render),
}


class Folders:
    """Prepared folders, made once and copied for each trial."""

    def __init__(self, path):
        self._path, self._count = path, 0

    def copy(self, make):
        """A new folder as `make` prepares it."""
        template = self._path / make.__name__
        if not template.exists():
            make(template)
        self._count += 1
        trial = self._path / f"{self._count}" / "run"
        trial.parent.mkdir()
        if template.exists():
            shutil.copytree(template, trial)
        return trial


def sampled(points, count):
    """Some of the points in their order, the same each time; all of them if `count` is None."""
    points = list(points)
    if count is None or count >= len(points):
        return points
    return sorted(random.Random(0).sample(points, count))
