"""The one training loop: what a run leaves, and that nothing which interrupts it changes that."""

import errno
import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

from snapens import Ensemble
from snapens.errors import ArgumentError, DamagedError, LockedError, MismatchError, NonFiniteError, StoreError
from snapens.lab import nets
from snapens.lab.engine import log as training_log
from snapens.lab.engine import training as training_module
from snapens.lab.engine.evaluation import Evaluation
from snapens.lab.engine.pack import prepare, train
from snapens.lab.engine.step import TrainingStep
from snapens.lab.engine.training import Training
from snapens.lab.records import source
from snapens.lab.records.run import Run
from snapens.storage import durable
from snapens.weights import tensors

CPU = torch.device("cpu")
SETTINGS = {"method": "grow", "pattern": ("fresh", "warm"), "dropout": 0.3, "held_out": 8, "seed": 5}
GROW = tiny.recipe(cycles=4, epochs=6, **SETTINGS)
"""24 steps: all that a run can have. Snapshots at 6, 12, 18 and 24."""


@pytest.fixture(autouse=True)
def _bursts_end_by_steps_only(monkeypatch):
    """However slow the machine is."""
    monkeypatch.setattr(training_module, "_BURST_SECONDS", math.inf)


def trained(*jobs, resume=False, state_seconds=300.0, **options):
    trainings = prepare(jobs, tiny.load, CPU, resume=resume, state_seconds=state_seconds)
    train(trainings, **options)
    return trainings


def left(path):
    """All that a run leaves and that is not a time: snapshots, outputs, the last state, the log's numbers."""
    run = Run(path)
    state = run.state()
    timed = {"seconds", "images_per_second", "pack"}  # and who was beside it
    return {
        "recipe": run.recipe,
        "snapshots": {step: run.snapshots.load(step) for step in run.snapshots.steps},
        "outputs": {
            part: (run.outputs(part).steps, run.outputs(part).log_probabilities.tolist())
            for part in (("test", "held_out") if run.recipe.dataset.held_out else ("test",))
            if run.snapshots.steps
        },
        "state": (state.completed, dict(state.tensors)),
        "log": [{key: value for key, value in line.items() if key not in timed} for line in run.log()],
    }


def assert_same(path, other):
    ours, theirs = left(path), left(other)
    assert ours["recipe"] == theirs["recipe"]
    assert ours["snapshots"].keys() == theirs["snapshots"].keys()
    for step, snapshot in ours["snapshots"].items():
        assert tiny.equal(snapshot, theirs["snapshots"][step]), step
    assert ours["outputs"] == theirs["outputs"]
    assert ours["state"][0] == theirs["state"][0]
    assert tiny.equal(ours["state"][1], theirs["state"][1])
    assert ours["log"] == theirs["log"]


# what a run leaves


@pytest.mark.parametrize("changes", [{}, {"method": "single"}, {"network": "small", "dropout": 0.2, "held_out": 8}])
def test_a_runs_snapshots_make_an_ensemble_that_says_what_its_outputs_say(tmp_path, changes):
    recipe = tiny.recipe(**changes)
    trained((recipe, tmp_path / "run"))
    held_out = recipe.dataset.held_out
    data = tiny.data().hold_out(held_out, 0)
    network = nets.of(replace(recipe, seed=99), 4, {"channels": 3})
    ensemble = Ensemble.load(tmp_path / "run", network)
    assert ensemble.steps == ((10, 20) if not held_out else (8, 16))
    for part in ("test", "held_out") if held_out else ("test",):
        images = getattr(data, part)
        mean, deviation = (np.array(row) for row in data.normalisation())
        x = torch.from_numpy((images.pixels - mean) / deviation).float().permute(0, 3, 1, 2)
        outputs = Run(tmp_path / "run").outputs(part)
        assert outputs.labels.tolist() == images.labels.tolist()
        assert np.abs(outputs.probabilities - ensemble.outputs([(x, images.labels)]).probabilities).max() < 1e-5
        assert np.abs(outputs.probabilities.mean(0) - ensemble.predict([x]).numpy()).max() < 2e-3


def test_the_last_snapshot_and_the_last_state_are_the_same_weights(tmp_path):
    trained((tiny.recipe(), tmp_path / "run"))
    found = left(tmp_path / "run")
    completed, state = found["state"]
    weights = {name.removeprefix("network."): tensor for name, tensor in state.items() if name.startswith("network.")}
    assert completed == 20
    assert tiny.equal(weights, found["snapshots"][20])


def test_a_run_is_as_many_plain_steps_as_its_schedule_has(tmp_path):
    recipe = tiny.recipe(dropout=0.2)
    step = TrainingStep(recipe, tiny.data().place(CPU), recipe.schedule(40))
    for completed in range(20):
        step(completed)
        if completed == 9:
            first = {name: tensor.detach().clone() for name, tensor in tensors(step.network).items()}
    trained((recipe, tmp_path / "run"))
    found = left(tmp_path / "run")
    assert tiny.equal(found["snapshots"][10], first)
    assert tiny.equal(found["state"][1], step.state())


def test_single_keeps_the_snapshots_of_nocycle_on_its_way(tmp_path):
    """One run is both: the same steps as with one snapshot, and as many on the way as are asked for."""
    trained((tiny.recipe(method="single", cycles=4), tmp_path / "nocycle"))
    trained((tiny.recipe(method="single", cycles=1), tmp_path / "single"))
    nocycle, single = left(tmp_path / "nocycle"), left(tmp_path / "single")
    assert list(nocycle["snapshots"]) == [5, 10, 15, 20]
    assert list(single["snapshots"]) == [20]
    assert tiny.equal(nocycle["state"][1], single["state"][1])


def watched_weights(monkeypatch):
    """The weights before each step, as they are when it is taken."""
    seen = []
    call = TrainingStep.__call__

    def noted(self, completed):
        seen.append({name: tensor.detach().clone() for name, tensor in tensors(self.network).items()})
        momentum = any(tensor.any() for name, tensor in self.state().items() if name.startswith("optimizer."))
        seen[-1]["momentum"] = torch.tensor(momentum)
        call(self, completed)

    monkeypatch.setattr(TrainingStep, "__call__", noted)
    return seen


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"method": "snapshot"}, "fresh warm warm warm"),
        ({"method": "single"}, "fresh warm warm warm"),
        ({"method": "singlecycle"}, "fresh fresh fresh fresh"),
        ({"method": "grow", "pattern": ("warm", "fresh")}, "fresh warm fresh warm"),
        ({"method": "grow", "pattern": ("fresh",)}, "fresh fresh fresh fresh"),
    ],
)
def test_each_cycle_begins_as_its_method_says(tmp_path, monkeypatch, changes, begins):
    seen = watched_weights(monkeypatch)
    recipe = tiny.recipe(cycles=4, seed=3, **changes)
    trained((recipe, tmp_path / "run"))
    kept = left(tmp_path / "run")["snapshots"]
    assert list(kept) == [5, 10, 15, 20]
    for cycle, word in enumerate(begins.split()):
        found = dict(seen[5 * cycle])
        assert bool(found.pop("momentum")) == (word == "warm")
        fresh = nets.of(replace(recipe, seed=3), 4, {"channels": 3}, cycle)
        assert tiny.equal(found, tensors(fresh) if word == "fresh" else kept[5 * cycle])


def test_the_log_tells_what_happened(tmp_path):
    [training] = trained((tiny.recipe(), tmp_path / "run"))
    run = Run(tmp_path / "run")
    lines = list(run.log())
    assert [(line["event"], line["step"]) for line in lines] == [
        ("trained", 5),
        ("trained", 10),
        ("snapshot", 10),
        ("trained", 15),
        ("trained", 20),
        ("snapshot", 20),
        ("finished", 20),
    ]
    losses = run.state().tensors["losses"].double().numpy()
    for line in lines:
        if line["event"] == "trained":
            assert line["loss"] == pytest.approx(losses[line["step"] - 5 : line["step"]].mean(), rel=1e-5)
            assert line["epoch"] == line["step"] * 8 / 40
            assert line["lr"] == pytest.approx(0.025 * (math.cos(math.pi * ((line["step"] - 1) % 10) / 10) + 1))
    errors = [line["test_error"] for line in lines if line["event"] == "snapshot"]
    outputs = run.outputs()
    assert errors == [np.mean(member.argmax(1) != outputs.labels) for member in outputs.probabilities]
    assert lines[-1]["torch"] == torch.__version__
    assert lines[-1]["sources"] == source.digest()
    assert lines[-1]["device"] == ("CPU, 1 thread" if (n := torch.get_num_threads()) == 1 else f"CPU, {n} threads")
    assert training.log.loss == lines[-3]["loss"]
    assert training.finished
    assert training.epoch == 4.0
    assert training.lr == 0.0
    assert run.finished


def test_before_the_first_line_of_the_log_the_loss_is_that_of_the_steps_so_far(tmp_path, monkeypatch):
    monkeypatch.setattr(training_module, "_BURST_STEPS", 1)
    [training] = prepare([(tiny.recipe(), tmp_path / "run")], tiny.load, CPU)
    shown = []
    for _ in range(7):  # the first line is that of step 5
        training.advance()
        shown.append(training.log.loss)
    losses = training.step.losses.double().numpy()
    means = [*(losses[: k + 1].mean() for k in range(5)), losses[:5].mean(), losses[:5].mean()]
    assert shown == pytest.approx(means, rel=1e-5)
    training.close()


def test_speed_is_counted_from_the_line_before_also_across_a_minimum(tmp_path, monkeypatch):
    """A step takes two seconds of this clock, an evaluation a hundred: ten images in two seconds, always."""
    clock = [1000.0]
    for module in (training_module, training_log):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=None))
    call, evaluate = TrainingStep.__call__, TrainingStep.log_probabilities

    def stepped(self, completed):
        clock[0] += 2
        call(self, completed)

    def evaluated(self, batches):
        clock[0] += 100
        return evaluate(self, batches)

    monkeypatch.setattr(TrainingStep, "__call__", stepped)
    monkeypatch.setattr(TrainingStep, "log_probabilities", evaluated)
    monkeypatch.setattr(training_module, "_BURST_STEPS", 1)
    recipe = tiny.recipe(batch=10, epochs=5)
    [begun] = trained((recipe, tmp_path / "begun"), **until(3))  # not measured yet, but estimated
    assert begun.images_per_second == pytest.approx(10 / 2)
    [training] = trained((recipe, tmp_path / "run"), state_seconds=1e9, **until(13))
    assert training.images_per_second == pytest.approx(10 / 2)
    trained((recipe, tmp_path / "run"), state_seconds=1e9, resume=True)
    lines = [line for line in Run(tmp_path / "run").log() if line["event"] == "trained"]
    assert [line["step"] for line in lines] == [4, 8, 10, 12, 16, 20]  # an epoch has four steps, a cycle ten
    assert [line["images_per_second"] for line in lines] == [5] * 6


# one run, or a pack


PACK = {
    "alone": [],
    "equal": [tiny.recipe(seed=1), tiny.recipe(seed=2)],
    "unequal": [tiny.recipe(network="tiny:wide", batch=10, epochs=8, lr=0.2), GROW, tiny.recipe(method="single")],
}


@pytest.mark.parametrize("neighbours", ["equal", "unequal"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_packed_run_is_the_run_alone_bit_for_bit(tmp_path, neighbours, place):
    recipe = tiny.recipe(dropout=0.3, seed=7)
    trained((recipe, tmp_path / "alone"))
    pack = list(PACK[neighbours])
    pack.insert(place, recipe)
    trainings = trained(*((other, tmp_path / str(k)) for k, other in enumerate(pack)))
    assert all(training.finished for training in trainings)
    assert_same(tmp_path / str(place), tmp_path / "alone")


def test_recipes_of_equal_data_share_it(tmp_path):
    loads = []

    def load(recipe):
        loads.append(recipe)
        return tiny.data()

    recipes = [tiny.recipe(), tiny.recipe(seed=1, lr=0.2), tiny.recipe(held_out=8), tiny.recipe(held_out=8, seed=3)]
    recipes += [tiny.recipe(held_out=8, held_out_seed=1)]
    trainings = prepare([(recipe, tmp_path / str(k)) for k, recipe in enumerate(recipes)], load, CPU)
    assert len(loads) == 1
    assert [trainings.index(next(t for t in trainings if t.placed is training.placed)) for training in trainings] == [
        0,
        0,
        2,
        2,
        4,
    ]
    for training in trainings:
        training.close()


FAILURES = {
    "diverges": (tiny.recipe(lr=1e30), NonFiniteError, "must be finite"),
    "raises": (tiny.recipe(network="tiny:raising"), RuntimeError, "the fourth step is one too many"),
}


@pytest.mark.parametrize(("recipe", "kind", "message"), FAILURES.values(), ids=FAILURES)
def test_a_run_that_fails_says_so_and_leaves_its_neighbours_alone(tmp_path, recipe, kind, message):
    trained((tiny.recipe(seed=1), tmp_path / "alone"))
    moved = []
    before, failing, after = trained(
        (tiny.recipe(seed=1), tmp_path / "before"),
        (recipe, tmp_path / "failing"),
        (tiny.recipe(seed=2), tmp_path / "after"),
        watch=moved.append,
    )
    assert isinstance(failing.failure, kind)
    assert message in str(failing.failure)
    assert not failing.finished
    noted = [line for line in failing.run.log() if line["event"] == "failed"]
    assert [line["reason"] for line in noted] == [f"{kind.__name__}: {failing.failure}"]
    assert before.failure is None
    assert after.failure is None
    assert after.finished
    assert moved.count(failing) == 1
    assert moved.count(before) > 1
    assert_same(tmp_path / "before", tmp_path / "alone")
    assert failing.run.snapshots.steps == ()
    prepare([(recipe, tmp_path / "failing")], tiny.load, CPU, resume=True)[0].close()  # the lock was given back


def test_a_run_that_cannot_even_note_its_failure_leaves_its_neighbours_alone(tmp_path, monkeypatch):
    note = Run.note

    def full(self, event, **values):
        if self.path.name == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        note(self, event, **values)

    monkeypatch.setattr(Run, "note", full)
    failing, other = trained((tiny.recipe(), tmp_path / "full"), (tiny.recipe(seed=1), tmp_path / "other"))
    assert isinstance(failing.failure, OSError)
    assert other.finished
    assert other.failure is None


def test_what_is_not_finite_is_never_a_member(tmp_path):
    recipe = tiny.recipe(lr=1e30, cycles=4)
    [training] = trained((recipe, tmp_path / "run"))
    assert isinstance(training.failure, NonFiniteError)
    assert Run(tmp_path / "run").snapshots.steps == ()


def test_outputs_that_are_not_finite_are_a_diverged_run_although_the_losses_were_finite(tmp_path):
    recipe = tiny.recipe(network="tiny:plain", lr=1e20, cycles=20)  # the first minimum is after the first step
    [training] = trained((recipe, tmp_path / "run"))
    assert isinstance(training.failure, NonFiniteError)
    assert str(training.failure) == (
        "loss must be finite, got nan on the test examples at step 1: use a lower --lr and another run folder (--out)"
    )


@pytest.mark.parametrize(
    ("after", "snapshots", "end"),
    [(1, (), "another run folder (--out)"), (6, (6,), "another run folder (--out); stored snapshots are intact")],
)
def test_a_diverged_run_says_that_its_snapshots_are_intact_if_there_are_some(
    tmp_path, monkeypatch, after, snapshots, end
):
    monkeypatch.setattr(training_module, "_BURST_STEPS", 1)

    def watch(training):
        if training.completed >= after:
            with torch.no_grad():
                next(training.step.network.parameters()).fill_(math.nan)

    [training] = trained((GROW, tmp_path / "run"), watch=watch)
    assert str(training.failure).startswith("loss must be finite, got nan up to step ")
    assert str(training.failure).endswith(end)
    assert Run(tmp_path / "run").snapshots.steps == snapshots


# going on


def until(steps):
    """For `stop`: true once so many steps of a pack are completed."""
    moved = []

    def watch(training):
        moved.append(training)

    return {"watch": watch, "stop": lambda: any(training.completed >= steps for training in moved)}


@pytest.mark.parametrize("burst", [1, 3, 8])
@pytest.mark.parametrize("stops", [(1,), (5, 6, 7), (12, 17)])
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(tmp_path, monkeypatch, burst, stops):
    trained((GROW, tmp_path / "whole"))
    monkeypatch.setattr(training_module, "_BURST_STEPS", burst)
    for k, steps in enumerate(stops):
        [training] = trained((GROW, tmp_path / "run"), resume=k > 0, **until(steps))
        assert steps <= training.completed < 24
        assert Run(tmp_path / "run").state().completed == training.completed
    [training] = trained((GROW, tmp_path / "run"), resume=True)
    assert training.finished
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_pack_is_stopped_together_and_one_that_cannot_keep_its_state_takes_no_other_with_it(tmp_path, monkeypatch):
    publish = durable.publish

    def full(path, chunks):
        if "full" in path.parts and "state" in path.parts and stopping:
            raise OSError(errno.ENOSPC, "No space left on device")
        return publish(path, chunks)

    stopping = []
    monkeypatch.setattr(durable, "publish", full)
    jobs = [(tiny.recipe(seed=seed), tmp_path / name) for seed, name in enumerate(("full", "other"))]
    failing, other = trained(*jobs, watch=stopping.append, stop=lambda: len(stopping) == 2)
    assert isinstance(failing.failure, StoreError)
    assert other.failure is None
    assert Run(tmp_path / "other").state().completed == 8
    assert Run(tmp_path / "full").state().completed == 0
    monkeypatch.undo()
    trained(*jobs, resume=True)
    trained((tiny.recipe(), tmp_path / "whole"))
    noted = left(tmp_path / "full")["log"]
    assert [line for line in noted if line["event"] != "failed"] == left(tmp_path / "whole")["log"]


def test_a_folder_that_has_a_run_is_refused_unless_it_is_resumed(tmp_path):
    [first] = trained((tiny.recipe(), tmp_path / "run"), **until(3))
    before = left(tmp_path / "run")["state"][0]
    loads = []
    with pytest.raises(StoreError, match=r"run must be a folder without a run, got .*: choose another folder"):
        prepare([(tiny.recipe(), tmp_path / "run")], loads.append, CPU)
    assert not loads  # before anything that takes time
    with pytest.raises(StoreError, match=r"run must be a folder without a run, got .*: choose another folder"):
        Training(tiny.recipe(), first.placed, tmp_path / "run").open()
    assert left(tmp_path / "run")["state"][0] == before


def test_a_run_is_resumed_with_its_own_recipe_alone(tmp_path):
    trained((tiny.recipe(), tmp_path / "run"), **until(3))
    with pytest.raises(MismatchError, match=r"optimizer.lr: 0\.05, 0\.5; optimizer.momentum: 0\.9, 0\.8: use"):
        prepare([(tiny.recipe(lr=0.5, momentum=0.8), tmp_path / "run")], tiny.load, CPU, resume=True)
    trained((tiny.recipe(), tmp_path / "run"), resume=True)  # the lock was given back


def test_a_run_that_another_process_writes_is_refused(tmp_path):
    trainings = prepare([(tiny.recipe(), tmp_path / "run")], tiny.load, CPU)
    with pytest.raises(LockedError, match="must have one writer"):
        prepare([(tiny.recipe(), tmp_path / "run")], tiny.load, CPU, resume=True)
    train(trainings)
    assert trainings[0].finished


def test_a_finished_run_is_resumed_without_a_step(tmp_path, monkeypatch):
    trained((tiny.recipe(), tmp_path / "run"))

    def content():
        return {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}

    before, seen = content(), []
    monkeypatch.setattr(TrainingStep, "__call__", lambda self, completed: seen.append(completed))
    [training] = trained((tiny.recipe(), tmp_path / "run"), resume=True, watch=seen.append)
    assert training.finished
    assert not seen
    assert content() == before


@pytest.mark.parametrize("damage", ["lost", "truncated", "altered", "index lost", "index altered"])
@pytest.mark.parametrize("stop_at", [13, 24])
def test_outputs_that_are_missing_or_damaged_are_recomputed(tmp_path, caplog, monkeypatch, damage, stop_at):
    trained((GROW, tmp_path / "whole"))
    trained((GROW, tmp_path / "run"), **until(stop_at))
    members = len(Run(tmp_path / "run").snapshots.steps)
    path = next((tmp_path / "run/outputs").glob("test-step-000000006-*"))
    if "index" in damage:
        path = tmp_path / "run/outputs/test.json"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    if "lost" in damage:
        path.unlink()
    else:
        path.write_bytes(content[:-7] if damage == "truncated" else content)
    with pytest.raises(StoreError, match=r"(restore|contains no outputs)"):
        Run(tmp_path / "run").outputs()
    recomputed, evaluate = [], Evaluation.outputs
    monkeypatch.setattr(Evaluation, "outputs", lambda self: recomputed.append(self) or evaluate(self))
    trained((GROW, tmp_path / "run"), resume=True)
    assert "they are recomputed" in caplog.text
    again = 1 if "index" not in damage else members
    assert len(recomputed) == again + 4 - members  # those that were damaged, and those of the later cycles
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_run_killed_before_it_could_say_that_it_is_finished_says_so_on_resuming(tmp_path):
    trained((tiny.recipe(), tmp_path / "whole"))
    trained((tiny.recipe(), tmp_path / "run"))
    log = tmp_path / "run" / "log.jsonl"
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines()[:-1]))
    assert not Run(tmp_path / "run").finished
    trained((tiny.recipe(), tmp_path / "run"), resume=True)
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_damaged_state_costs_the_steps_since_the_one_before_and_nothing_else(tmp_path, monkeypatch):
    trained((GROW, tmp_path / "whole"))
    monkeypatch.setattr(training_module, "_BURST_STEPS", 1)
    trained((GROW, tmp_path / "run"), state_seconds=-1.0, **until(13))
    current = tmp_path / "run" / "state" / "state.json"
    file = current.parent / json.loads(current.read_bytes())["file"]
    file.write_bytes(file.read_bytes()[:-1])
    [training] = prepare([(GROW, tmp_path / "run")], tiny.load, CPU, resume=True)
    assert training.completed in (12, 13)
    train([training])
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_two_damaged_states_are_refused_and_the_snapshots_are_still_there(tmp_path):
    trained((GROW, tmp_path / "run"), **until(13))
    for file in (tmp_path / "run" / "state").glob("step-*"):
        file.unlink()
    with pytest.raises(DamagedError, match="state"):
        prepare([(GROW, tmp_path / "run")], tiny.load, CPU, resume=True)
    assert Run(tmp_path / "run").snapshots.steps == (6, 12, 18)


def test_snapshots_without_a_state_are_not_trained_over(tmp_path):
    trained((GROW, tmp_path / "run"), **until(13))
    shutil.rmtree(tmp_path / "run" / "state")
    with pytest.raises(
        DamagedError, match=r"run must hold the state of its snapshots, but there is none: restore state/$"
    ):
        prepare([(GROW, tmp_path / "run")], tiny.load, CPU, resume=True)
    assert Run(tmp_path / "run").snapshots.steps == (6, 12, 18)


def test_a_state_is_kept_as_often_as_asked(tmp_path, monkeypatch):
    saved = []
    save = Run.save

    def noted(self, state):
        saved.append(state.completed)
        save(self, state)

    monkeypatch.setattr(Run, "save", noted)
    monkeypatch.setattr(training_module, "_BURST_STEPS", 4)
    trained((tiny.recipe(), tmp_path / "often"), state_seconds=-1.0)
    assert sorted(set(saved)) == [0, 4, 8, 10, 14, 18, 20]
    saved.clear()
    trained((tiny.recipe(), tmp_path / "rarely"), state_seconds=1e9)
    assert saved == [0, 10, 20]  # at the start and at each minimum, whatever was asked
    assert_same(tmp_path / "often", tmp_path / "rarely")


# what goes wrong on the way


FILES = {
    "snapshot": lambda path: path.parent.name == "snapshots",
    "manifest": lambda path: path.name == "manifest.json",
    "outputs": lambda path: path.parent.name == "outputs" and path.suffix == ".safetensors",
    "outputs' index": lambda path: path.parent.name == "outputs" and path.suffix == ".json",
    "state": lambda path: path.parent.name == "state" and path.name.startswith("step-"),
    "state's description": lambda path: path.name == "state.json",
}


@pytest.mark.parametrize("hit", FILES.values(), ids=FILES)
def test_a_full_disk_ends_the_run_loses_no_snapshot_and_can_be_resumed_from(tmp_path, monkeypatch, hit):
    trained((GROW, tmp_path / "whole"))
    publish, full = durable.publish, []

    def limited(path, chunks):
        if hit(path) and Run(tmp_path / "run").state().completed >= 6:
            full.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        return publish(path, chunks)

    [training] = prepare([(GROW, tmp_path / "run")], tiny.load, CPU)
    monkeypatch.setattr(durable, "publish", limited)
    train([training])
    monkeypatch.undo()
    assert full
    assert "No space left on device" in str(training.failure)
    run = Run(tmp_path / "run")
    assert "No space left on device" in next(line["reason"] for line in run.log() if line["event"] == "failed")
    assert 6 in run.snapshots.steps
    assert tiny.equal(run.snapshots.load(6), left(tmp_path / "whole")["snapshots"][6])
    [training] = trained((GROW, tmp_path / "run"), resume=True)
    assert training.failure is None
    log = tmp_path / "run" / "log.jsonl"
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines() if '"failed"' not in line))
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("fitting", [0, 2])
def test_a_pack_too_large_for_the_device_says_how_many_fit_and_begins_no_run(tmp_path, monkeypatch, fitting):
    make, made = TrainingStep.__init__, []

    def limited(self, *args):
        if len(made) == fitting:
            raise torch.OutOfMemoryError("CUDA out of memory")
        made.append(self)
        make(self, *args)

    monkeypatch.setattr(TrainingStep, "__init__", limited)
    jobs = [(tiny.recipe(seed=seed), tmp_path / str(seed)) for seed in range(4)]
    fits = "the first 2 fit" if fitting else "not even one fits"
    with pytest.raises(
        ArgumentError, match=f"a pack must fit into the memory of cpu, got 4 runs, of which {fits}: train"
    ):
        prepare(jobs, tiny.load, CPU)
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    assert all(training.finished for training in trained(*jobs))


def test_too_few_images_for_the_cycles_are_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(ArgumentError, match="batch must be at most the 40 training examples, got 41"):
        prepare([(tiny.recipe(batch=41), tmp_path / "run")], tiny.load, CPU)
    with pytest.raises(ArgumentError, match="epochs must give at least one step per cycle"):
        prepare([(tiny.recipe(cycles=21), tmp_path / "run")], tiny.load, CPU)
    with pytest.raises(ArgumentError, match="held_out must be at least 0 and less than the 40 training examples"):
        prepare([(tiny.recipe(held_out=40), tmp_path / "run")], tiny.load, CPU)
    with pytest.raises(ArgumentError, match="unknown network 'smal': did you mean small"):
        prepare([(tiny.recipe(network="smal"), tmp_path / "run")], tiny.load, CPU)
    assert not list(tmp_path.iterdir())


def test_a_pack_of_which_one_cannot_begin_lets_go_of_the_others(tmp_path):
    trained((tiny.recipe(), tmp_path / "b"), **until(3))
    jobs = [(tiny.recipe(), tmp_path / "a"), (tiny.recipe(seed=1), tmp_path / "b")]
    with pytest.raises(MismatchError, match="seed: 0, 1"):
        prepare(jobs, tiny.load, CPU, resume=True)
    trained((tiny.recipe(), tmp_path / "a"), resume=True)
    assert Run(tmp_path / "a").finished


def test_a_run_folder_holds_nothing_that_a_pickle_begins_with(tmp_path):
    trained((GROW, tmp_path / "run"))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".jsonl", ".safetensors", ".lock"}
    for path in files:
        content = path.read_bytes()
        assert content[:1] != b"\x80"  # the opcode that says a pickle's protocol
        assert not content.startswith(b"PK")  # the archive that torch.save writes
        if path.suffix == ".safetensors":
            length = int.from_bytes(content[:8], "little")
            assert isinstance(json.loads(content[8 : 8 + length]), dict)
        elif path.suffix == ".json":
            json.loads(content)
    # labels and outputs of two parts, the gallery, one file per snapshot, two states, and nothing half-written
    assert sorted(path.parent.name for path in files if path.suffix == ".safetensors") == [
        *["outputs"] * 10,
        "run",
        *["snapshots"] * 4,
        *["state"] * 2,
    ]
