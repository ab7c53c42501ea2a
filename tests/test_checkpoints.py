"""Checkpoints of an ensembler, and the stores that they continue."""

import json
import math

import numpy as np
import pytest
import torch
from loop import SCHEDULE, saved, sgd, train

from snapens import CyclicCosine, Schedule, SnapshotEnsembler, Snapshots
from snapens.errors import ArgumentError, MismatchError, StoreError
from snapens.schedule import description


def test_the_state_is_plain_values_and_loads_with_weights_only(net, tmp_path):
    optimizer = sgd(net)
    for store in (None, tmp_path):
        ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=store)
        train(net, optimizer, ensembler, 5)
        state = saved(ensembler.state_dict())
        assert (state["completed"], list(state["store"]["snapshots"])) == (5, [4])
    assert state["held"] == {}


def test_a_checkpoint_contains_a_memory_store_and_tensors_stay_shared(make_net):
    net = make_net()
    net.module.requires_grad_(False)
    optimizer = sgd(net.head)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE)
    train(net, optimizer, ensembler, 9)
    state = saved(ensembler.state_dict())
    again = SnapshotEnsembler(net, optimizer, SCHEDULE)
    again.load_state_dict(state)
    assert again.snapshots.steps == (4, 8)
    assert all(torch.equal(again.snapshots.load(8)[n], t) for n, t in ensembler.snapshots.load(8).items())
    assert again.snapshots.entries(4)["module.weight"] == again.snapshots.entries(8)["module.weight"]


def test_resuming_without_a_checkpoint_replaces_nothing(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 5)
    ensembler.snapshots.close()
    again = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path, resume=True)
    with pytest.raises(MismatchError, match=r"holds the snapshots of steps \[4\], but this run is at step 0"):
        again.step()
    assert Snapshots(tmp_path).steps == (4,)


def test_resume_accepts_an_empty_folder(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / "new", resume=True)
    train(net, optimizer, ensembler, 12)
    assert ensembler.snapshots.steps == (4, 8, 12)


def test_a_folder_that_holds_another_run_is_rejected(make_net, tmp_path):
    net = make_net()
    states = {}
    for name in ("a", "b"):
        optimizer = sgd(net)
        ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / name)
        train(net, optimizer, ensembler, 5)
        states[name] = ensembler.state_dict()
        ensembler.snapshots.close()
    with pytest.raises(StoreError, match="which holds those of steps 4"):
        SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / "a")
    again = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path / "a", resume=True)
    with pytest.raises(MismatchError, match=f"store must be that of the checkpoint .run {states['b']['store']['run']}"):
        again.load_state_dict(states["b"])
    assert again.snapshots.steps == (4,)


def test_a_checkpoint_of_another_schedule_is_rejected(net):
    state = SnapshotEnsembler(net, sgd(net), SCHEDULE).state_dict()
    other = SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 2))
    with pytest.raises(
        MismatchError, match="schedule must be that of the checkpoint, got cycles=2 instead of 3, "
    ) as raised:
        other.load_state_dict(state)
    assert str(raised.value).endswith(": use that schedule and that number of steps")


def test_a_folder_that_lost_a_snapshot_of_the_checkpoint_is_rejected(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 5)
    state = ensembler.state_dict()
    state["store"]["snapshots"] = {2: "gone", **state["store"]["snapshots"]}
    with pytest.raises(MismatchError, match=r"\[2\] are missing or replaced: restore the folder"):
        ensembler.load_state_dict(state)


def test_a_checkpoint_of_an_abandoned_course_of_training_is_rejected(net, tmp_path):
    optimizer = sgd(net)
    ensembler = SnapshotEnsembler(net, optimizer, SCHEDULE, store=tmp_path)
    train(net, optimizer, ensembler, 3)
    early = ensembler.state_dict()
    train(net, optimizer, ensembler, 2)
    late = ensembler.state_dict()
    ensembler.load_state_dict(early)
    train(net, optimizer, ensembler, 2)  # stores another snapshot at step 4
    with pytest.raises(MismatchError, match=r"\[4\] are missing or replaced"):
        ensembler.load_state_dict(late)
    assert ensembler.snapshots.steps == (4,)


def test_a_users_own_schedule_resumes_in_another_process(net):
    class Own(Schedule):
        total_steps, snapshot_steps, restart_steps = 4, (2, 4), (2,)

        def __call__(self, step):
            return 1.0

    state = SnapshotEnsembler(net, sgd(net), Own()).state_dict()
    SnapshotEnsembler(net, sgd(net), Own()).load_state_dict(state)


def test_the_steps_of_a_users_own_schedule_can_come_from_numpy(net, tmp_path):
    class Own(Schedule):
        total_steps = np.int64(12)
        snapshot_steps = np.linspace(0, 12, 4, dtype=int)[1:]
        restart_steps = ()

        def __call__(self, step):
            return 1.0

    ensembler = SnapshotEnsembler(net, sgd(net), Own(), store=tmp_path)
    train(net, ensembler.optimizer, ensembler, 12)
    state = saved(ensembler.state_dict())  # torch.load and JSON reject NumPy's integers
    assert json.loads(json.dumps(state))["schedule"]["snapshot_steps"] == [4, 8, 12]
    SnapshotEnsembler(net, sgd(net), Own(), store=tmp_path, resume=True).load_state_dict(state)


def test_a_finished_checkpoint_with_other_cycles_loads_and_an_unfinished_one_is_rejected_with_a_remedy(net):
    """Earlier versions cut the last cycle short where M does not divide T."""
    state = SnapshotEnsembler(net, sgd(net), CyclicCosine(11, 3)).state_dict()
    state["schedule"] = "CyclicCosine(total_steps=11, cycles=3, …, snapshot_steps=(4, 8, 11))"
    ensembler = SnapshotEnsembler(net, sgd(net), CyclicCosine(11, 3))
    ends = {**description(CyclicCosine(11, 3)), "snapshot_steps": [4, 8, 11]}
    for schedule in (state["schedule"], ends):
        with pytest.raises(MismatchError, match="cycles of unequal length, finish the run with that version"):
            ensembler.load_state_dict({**state, "schedule": schedule})
    ensembler.load_state_dict({**state, "completed": 11})
    assert ensembler.completed == 11


@pytest.mark.parametrize("how", ["load_state_dict", "rewind"])
def test_a_run_that_is_continued_at_its_last_step_releases_the_folder(net, tmp_path, how):
    """A notebook cell that resumes a run can be executed any number of times."""
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path)
    train(net, ensembler.optimizer, ensembler, 12)
    state, loaded = ensembler.state_dict(), []
    for _ in range(2):
        loaded.append(SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path, resume=True))
        if how == "rewind":
            loaded[-1].rewind(12)
        else:
            loaded[-1].load_state_dict(state)
    assert [one.ensemble().steps for one in loaded] == [(4, 8, 12)] * 2
    loaded[-1].rewind(8)  # and becomes the writer again
    train(net, loaded[-1].optimizer, loaded[-1], 4)
    assert loaded[-1].snapshots.steps == (4, 8, 12)


def test_a_checkpoint_written_before_a_parameter_existed_has_its_default(net):
    state = SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 3)).state_dict()
    del state["schedule"]["first"]
    SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 3)).load_state_dict(state)
    with pytest.raises(
        MismatchError, match=r"got first=2 instead of 1\.0, snapshot_steps=\[6, 9, 12\] instead of \[4, 8, 12\]:"
    ):
        SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 3, first=2)).load_state_dict(state)


def test_a_checkpoint_of_a_folder_store_survives_json(net, tmp_path):
    ensembler = SnapshotEnsembler(net, sgd(net), CyclicCosine(4, 2), store=tmp_path)
    for _ in range(3):
        ensembler.step()
    state = json.loads(json.dumps(ensembler.state_dict()))
    ensembler.close()
    again = SnapshotEnsembler(net, sgd(net), CyclicCosine(4, 2), store=tmp_path, resume=True)
    again.load_state_dict(state)
    assert again.completed == 3
    assert again.step() == 4


def test_rewind_continues_a_folder_at_a_step_and_the_rate_follows(make_net, tmp_path):
    net = make_net()
    first = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path)
    train(net, first.optimizer, first, 9)
    first.close()
    net = make_net()
    again = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path, resume=True)
    again.rewind(6)
    assert again.completed == 6
    assert again.ensemble().steps == (4,)  # the snapshot of step 8 belongs to the abandoned steps
    returned, rates, states = train(net, again.optimizer, again, 6)
    assert returned == [None, 8, None, None, None, 12]
    assert rates[0] == [0.1 * (math.cos(math.pi * 2 / 4) + 1) / 2]  # two steps into the second cycle
    assert torch.equal(Snapshots(tmp_path).load(8)["head.bias"], states[1]["head.bias"])


def test_rewind_works_for_a_store_in_memory(net):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE)
    train(net, ensembler.optimizer, ensembler, 8)
    ensembler.rewind(np.int64(4))
    assert ensembler.snapshots.steps == (4,)
    assert saved(ensembler.state_dict())["completed"] == 4  # torch.load rejects NumPy's integers


@pytest.mark.parametrize("step", [-1, 2.0, True, None])
def test_rewind_rejects_what_is_not_a_step(net, step):
    with pytest.raises(ArgumentError, match="step must be a whole number of at least 0, got"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE).rewind(step)


def test_rewind_rejects_a_step_after_the_last(net):
    with pytest.raises(ArgumentError, match="step must be at most total_steps=12, got 13"):
        SnapshotEnsembler(net, sgd(net), SCHEDULE).rewind(13)


def test_rewind_rejects_a_store_that_lacks_a_snapshot(net, tmp_path):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path)
    with pytest.raises(MismatchError, match=r"snapshots of steps \[4, 8\] to continue at step 9, got \[\]"):
        ensembler.rewind(9)


def test_rewind_rejects_a_store_of_another_schedule(net, tmp_path):
    first = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path)
    train(net, first.optimizer, first, 4)
    first.close()
    other = SnapshotEnsembler(net, sgd(net), CyclicCosine(12, 2), store=tmp_path, resume=True)
    with pytest.raises(MismatchError, match=r"snapshots of steps \[\] to continue at step 5, got \[4\]"):
        other.rewind(5)


def test_rewind_accepts_a_snapshot_that_was_skipped(net, tmp_path):
    ensembler = SnapshotEnsembler(net, sgd(net), SCHEDULE, store=tmp_path, on_nonfinite="skip")
    ensembler.rewind(5)
    assert train(net, ensembler.optimizer, ensembler, 3)[0] == [None, None, 8]
