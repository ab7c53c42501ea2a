import json
import logging
import math
import shutil

import numpy as np
import pytest
import tiny
import torch

from snapens import Snapshots
from snapens.errors import ArgumentError, DamagedError, MismatchError, StoreError
from snapens.lab.engine.feed import Placed
from snapens.lab.records.run import Run, State
from snapens.outputs import Outputs
from snapens.storage import durable, tensorfile

DATA = tiny.data().described()


def begun(path, recipe=tiny.RECIPE):
    path.mkdir(exist_ok=True)
    run = Run(path)
    run.begin(recipe, DATA)
    return run


def state(completed):
    tensors = {"weight": torch.full((100,), float(completed)), "completed": torch.tensor([completed])}
    return State(completed, tensors, {"seconds": completed / 3, "ensembler": {"completed": completed}})


def assert_state(found, completed):
    wanted = state(completed)
    assert found is not None
    assert found.completed == completed
    assert found.notes == wanted.notes
    assert tiny.equal(found.tensors, wanted.tensors)


def test_a_run_knows_what_it_is(tmp_path):
    recipe = tiny.recipe(method="grow", pattern=("warm", "fresh"), lr=0.123456789)
    assert not Run(tmp_path).exists
    begun(tmp_path, recipe)
    run = Run(tmp_path)
    assert run.exists
    assert run.recipe == recipe
    assert run.data == DATA
    content = json.loads((tmp_path / "recipe.json").read_text())
    assert content.keys() == {"recipe", "data"}
    assert content["recipe"]["pattern"] == ["warm", "fresh"]


def test_a_run_is_resumed_with_its_own_recipe_and_data_alone(tmp_path):
    begun(tmp_path)
    before = (tmp_path / "recipe.json").read_bytes()
    Run(tmp_path).begin(tiny.recipe(), DATA)
    with pytest.raises(MismatchError) as caught:
        Run(tmp_path).begin(tiny.recipe(lr=0.5, seed=9), DATA)
    assert str(caught.value) == (
        f"recipe must be that of the run in {tmp_path} to resume it, got (there, now) lr: 0.05, 0.5; seed: 0, 9"
    )
    with pytest.raises(MismatchError, match=r"data must be that of the run in .* to resume it, got other mean"):
        Run(tmp_path).begin(tiny.recipe(), {**DATA, "mean": [1.0, 2.0, 3.0]})
    assert (tmp_path / "recipe.json").read_bytes() == before


def test_a_run_whose_recipe_is_lost_is_not_begun_anew(tmp_path):
    run = begun(tmp_path)
    run.save(state(3))
    (tmp_path / "recipe.json").unlink()
    for resume in (False, True):
        with pytest.raises(DamagedError, match=r"must hold recipe\.json beside the state that is there, got none"):
            run.admit(tiny.RECIPE, resume)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(StoreError, match=rf"run must be a folder that holds recipe.json, got {tmp_path}: check the"):
        _ = Run(tmp_path).recipe


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"",
        lambda text: b"[]",
        lambda text: b"[" * 200_000,
        lambda text: text.replace(b'"data"', b'"date"'),
        lambda text: text.replace(b'"lr": 0.05', b'"lr": NaN'),
        lambda text: text.replace(b'"lr": 0.05', b'"lr": "0.05"'),
        lambda text: text.replace(b'"lr": 0.05', b'"lr": 0.05, "lr": 0.06'),
        lambda text: text.replace(b'"lr": 0.05', b'"rate": 0.05'),
        lambda text: text.replace(b'"batch": 8', b'"batch": 0'),
        lambda text: text.replace(b'"images": {', b'"images": "", "other": {'),
        lambda text: text.replace(b'"classes": [', b'"classes": 3, "other": ['),
    ],
)
def test_a_recipe_that_was_tampered_with_is_refused(tmp_path, change):
    begun(tmp_path)
    path = tmp_path / "recipe.json"
    changed = change(path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    with pytest.raises(DamagedError, match=r"recipe\.json must be what snapens wrote, got .*: restore the file"):
        _ = Run(tmp_path).recipe


def test_the_log_gives_back_its_lines_but_for_a_torn_one(tmp_path):
    run = begun(tmp_path)
    assert list(run.log()) == []
    run.note("trained", step=5, loss=1.25)
    run.note("snapshot", step=10, test_error=0.5)
    lines = [{"event": "trained", "step": 5, "loss": 1.25}, {"event": "snapshot", "step": 10, "test_error": 0.5}]
    assert list(run.log()) == lines
    path = tmp_path / "log.jsonl"
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[1])):
        path.write_bytes(whole[: -1 - cut])
        assert list(run.log()) == lines[:1]
    path.write_bytes(whole[:-1])  # only the end of the line is missing
    assert list(run.log()) == lines
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match=r"log\.jsonl could not be read \(.*\): check who may read it"):
        list(run.log())


def test_a_loss_that_json_has_no_word_for_is_not_noted(tmp_path):
    run = begun(tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.note("trained", step=5, loss=math.nan)
    assert list(run.log()) == []


def test_going_back_forgets_later_lines_and_the_torn_one_but_not_what_has_no_step(tmp_path):
    run = begun(tmp_path)
    for step in (5, 10, 15):
        run.note("trained", step=step)
    run.note("failed", reason="no light")
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"event": "trai')
    run.forget(10)
    run.note("trained", step=15)
    assert [line.get("step") for line in run.log()] == [5, 10, None, 15]
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 4


def test_a_run_is_finished_when_its_log_says_so(tmp_path):
    run = begun(tmp_path)
    run.note("snapshot", step=20)
    assert not run.finished
    run.note("finished", step=20)
    assert run.finished


def test_a_state_comes_back_and_the_one_before_stays(tmp_path):
    run = begun(tmp_path)
    assert run.state() is None
    for completed in (0, 4, 9):
        run.save(state(completed))
        assert_state(run.state(), completed)
        assert_state(Run(tmp_path).state(), completed)
    files = sorted(path.name.partition("-")[0] for path in (tmp_path / "state").iterdir())
    assert files == ["state.json", "state.previous.json", "step", "step"]


def latest(path):
    return path / "state" / json.loads((path / "state" / "state.json").read_bytes())["file"]


def flipped(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "tensors truncated": lambda path: latest(path).write_bytes(latest(path).read_bytes()[:-7]),
    "tensors altered": lambda path: flipped(latest(path), -9),
    "header altered": lambda path: flipped(latest(path), 30),
    "tensors missing": lambda path: latest(path).unlink(),
    "tensors a folder": lambda path: (latest(path).unlink(), latest(path).mkdir())[0],
    "json truncated": lambda path: (path / "state" / "state.json").write_bytes(b'{"completed": 9, "fi'),
    "json empty": lambda path: (path / "state" / "state.json").write_bytes(b""),
    "json a list": lambda path: (path / "state" / "state.json").write_bytes(b"[]"),
    "json without notes": lambda path: (path / "state" / "state.json").write_bytes(b'{"completed": 9}'),
    "json bottomless": lambda path: (path / "state" / "state.json").write_bytes(b"[" * 200_000),
    "json missing": lambda path: (path / "state" / "state.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_gives_way_to_the_one_before(tmp_path, caplog, damage):
    run = begun(tmp_path)
    for completed in (4, 9):
        run.save(state(completed))
    damage(tmp_path)
    with caplog.at_level(logging.WARNING, "snapens"):
        assert_state(Run(tmp_path).state(), 4)
    assert ("going on from the state before" in caplog.text) == (tmp_path / "state" / "state.json").exists()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_after_a_damage_the_next_save_loses_nothing_wherever_it_stops(tmp_path, monkeypatch, damage, writes):
    run = begun(tmp_path)
    for completed in (4, 9):
        run.save(state(completed))
    damage(tmp_path)
    resumed = Run(tmp_path)
    assert_state(resumed.state(), 4)
    publish, left = durable.publish, [writes]

    def limited(path, chunks):
        if not left[0]:
            raise OSError("no space left")
        left[0] -= 1
        return publish(path, chunks)

    monkeypatch.setattr(durable, "publish", limited)
    if writes == 3:
        resumed.save(state(6))
    else:
        with pytest.raises(StoreError, match="no space left"):
            resumed.save(state(6))
    assert_state(Run(tmp_path).state(), 6 if writes == 3 else 4)
    monkeypatch.undo()
    again = Run(tmp_path)
    again.state()
    again.save(state(7))
    assert_state(Run(tmp_path).state(), 7)


def test_two_damaged_states_are_an_error_that_names_the_file(tmp_path):
    run = begun(tmp_path)
    for completed in (4, 9):
        run.save(state(completed))
    for path in (tmp_path / "state").glob("step-*"):
        flipped(path, -1)
    with pytest.raises(DamagedError, match=r"must have the SHA-256 that state\.previous\.json has, but it was alt"):
        Run(tmp_path).state()
    (tmp_path / "state" / "state.previous.json").write_bytes(b"{")
    with pytest.raises(DamagedError, match=r"state\.previous\.json must be a state as snapens wrote it, got JSONDec"):
        Run(tmp_path).state()


def test_a_state_cannot_point_out_of_its_folder(tmp_path):
    run = begun(tmp_path / "run")
    run.save(state(4))
    shutil.move(latest(tmp_path / "run"), tmp_path / "elsewhere")
    path = tmp_path / "run" / "state" / "state.json"
    about = json.loads(path.read_bytes())
    for name in ("../../elsewhere", str(tmp_path / "elsewhere"), "..", ""):
        path.write_text(json.dumps({**about, "file": name}))
        with pytest.raises(DamagedError, match="must be a state as snapens wrote it"):
            Run(tmp_path / "run").state()


def member(seed, examples=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(examples, 4, generator=generator).log_softmax(1).half()


LABELS = torch.tensor([0, 1, 2, 3, 0, 1])


def kept(path, *steps):
    """A store with snapshots of these steps."""
    store = Snapshots(path)
    store.open_to_write(resume=True)
    store.rewind(0)
    for step in steps:
        store.commit(step, {"weight": torch.full((2,), float(step))})
    store.close()


def test_the_last_words_are_the_last_and_lines_of_others_are_passed_over(tmp_path):
    run = begun(tmp_path)
    assert run.last_words is None
    (tmp_path / "log.jsonl").write_text('{"note": "mine"}\n{"event": "finished", "seconds": 1}\n')
    run.note("finished", seconds=2)
    assert run.finished
    assert run.last_words == {"event": "finished", "seconds": 2}


def test_members_outputs_are_kept_one_after_the_other(tmp_path):
    run = begun(tmp_path)
    for step in (10, 20, 30):
        run.add_outputs(step, {"test": (member(step), LABELS), "held_out": (member(-step, 3), LABELS[:3])})
    kept(tmp_path, 10, 20, 30)
    for part, sign in (("test", 1), ("held_out", -1)):
        outputs = run.outputs(part)
        rows = 6 if sign == 1 else 3
        assert outputs.log_probabilities.shape == (3, rows, 4)
        assert outputs.log_probabilities.dtype == np.float16
        for k, step in enumerate((10, 20, 30)):
            assert np.array_equal(outputs.log_probabilities[k], member(sign * step, rows).numpy())
        assert outputs.labels.tolist() == LABELS.tolist()[:rows]


def test_outputs_of_before_a_resume_are_replaced_and_later_ones_dropped(tmp_path):
    run = begun(tmp_path)
    for step, seed in ((10, 1), (20, 2), (30, 3), (20, 4)):  # gone back from 30 to before 20
        run.add_outputs(step, {"test": (member(seed), LABELS)})
    kept(tmp_path, 10, 20)
    found = run.outputs().log_probabilities
    assert np.array_equal(found, np.stack([member(1).numpy(), member(4).numpy()]))
    run.add_outputs(10, {"test": (member(5), LABELS)})  # and back to the very start
    kept(tmp_path, 10)
    assert np.array_equal(run.outputs().log_probabilities, member(5).numpy()[None])


def test_outputs_are_those_of_committed_snapshots_alone(tmp_path):
    run = begun(tmp_path)
    for step in (10, 20):
        run.add_outputs(step, {"test": (member(step), LABELS)})
    kept(tmp_path, 10)  # killed before the second was committed
    assert np.array_equal(run.outputs().log_probabilities, member(10).numpy()[None])


def test_outputs_that_are_not_there_are_an_error_that_says_how_to_have_some(tmp_path):
    run = begun(tmp_path)
    with pytest.raises(StoreError, match=r"holds no outputs of the test images$"):
        run.outputs()
    run.add_outputs(10, {"test": (member(1), LABELS)})
    kept(tmp_path)
    with pytest.raises(StoreError, match="holds no snapshot yet: wait for the first minimum"):
        run.outputs()
    with pytest.raises(StoreError, match="holds no outputs of the held_out images; train with held_out=N to have some"):
        run.outputs("held_out")


@pytest.mark.parametrize("keep", [0, 5, 40, -1])
def test_a_damaged_file_of_outputs_is_an_error_of_our_own(tmp_path, keep):
    run = begun(tmp_path)
    run.add_outputs(10, {"test": (member(1), LABELS)})
    kept(tmp_path, 10)
    path = tmp_path / "outputs.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DamagedError, match=r"outputs\.safetensors"):
        run.outputs()


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: stored.pop("steps"),
        lambda stored: stored.pop("test_labels"),
        lambda stored: stored.update(steps=torch.tensor([20])),
        lambda stored: stored.update(test_labels=LABELS[:3]),
        lambda stored: stored.update(test=stored["test"] * float("nan")),
        lambda stored: stored.update(test=stored["test"][0]),
        lambda stored: stored.update(test=torch.full_like(stored["test"], -float("inf"))),
        lambda stored: stored["test"][0, 0].fill_(-float("inf")),  # of one image alone
        lambda stored: stored.update(test_labels=LABELS + 100),
        lambda stored: stored.update(test_labels=LABELS - 100),
        lambda stored: stored.update(test_labels=LABELS.double()),
    ],
)
def test_outputs_that_lack_something_are_damaged(tmp_path, change):
    run = begun(tmp_path)
    run.add_outputs(10, {"test": (member(1), LABELS)})
    kept(tmp_path, 10)
    path = tmp_path / "outputs.safetensors"
    stored = {name: entry.read() for name, entry in tensorfile.entries(path).items()}
    change(stored)
    path.write_bytes(b"".join(tensorfile.encode(stored)))
    with pytest.raises(
        DamagedError, match=r"outputs\.safetensors must hold what every member says, got .*: restore it"
    ):
        run.outputs()


def test_probabilities_add_up_to_one_and_errors_are_counted_by_hand():
    members = np.array([[[0.6, 0.4], [0.3, 0.7], [0.9, 0.1]], [[0.1, 0.9], [0.2, 0.8], [0.2, 0.8]]])
    outputs = Outputs(np.log(members).astype(np.float16), np.array([0, 1, 0]))
    assert np.allclose(outputs.probabilities, members, atol=1e-3)
    assert np.allclose(outputs.probabilities.sum(-1), 1, atol=1e-12)
    assert outputs.member_errors == pytest.approx([0, 2 / 3])
    # the last alone; both: (0.35, 0.65), (0.25, 0.75), (0.55, 0.45)
    assert outputs.ensemble_errors == pytest.approx([2 / 3, 1 / 3])


def test_pixels_are_prepared_as_they_were_for_training(tmp_path):
    data = tiny.data()
    Run(tmp_path).begin(tiny.recipe(), data.described())
    placed = Placed(data, torch.device("cpu"))
    for pixels in (data.test.pixels, torch.from_numpy(data.test.pixels)):
        assert torch.allclose(Run(tmp_path).prepared(pixels), next(placed.batches(data.test)), atol=1e-6)
    with pytest.raises(ArgumentError, match=r"uint8 of shape \(images, 8, 8, 3\), got uint8 of \(20, 8\)"):
        Run(tmp_path).prepared(data.test.pixels[:, :, 0, 0])
    assert repr(Run("runs/a")) == "Run('runs/a')"
