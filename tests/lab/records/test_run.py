import binascii
import errno
import json
import logging
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from snapens import Combination, Snapshots
from snapens.errors import ArgumentError, DamagedError, MismatchError, StoreError
from snapens.lab.records import format_1, gallery
from snapens.lab.records.curves import Between, Line
from snapens.lab.records.run import Run, State
from snapens.lab.records.runs import runs_in
from snapens.outputs import Outputs
from snapens.storage import durable, jsonfile, parts, sealed

DATA = tiny.data().described()


def begun(path, recipe=tiny.RECIPE):
    path.mkdir(exist_ok=True)
    run = Run(path)
    run.begin(recipe, DATA)
    return run


def failing(error):
    def fail(*_):
        raise error

    return fail


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
    assert list(content) == ["format", "kind", "run", "recipe", "data", "sha256"]
    assert (content["format"], content["kind"], content["run"]) == (2, "recipe", run.snapshots.identity["run"])
    assert content["recipe"]["method"] == {"kind": "grow", "cycles": 2, "pattern": ["warm", "fresh"]}


def test_a_run_is_resumed_with_its_own_recipe_and_data_alone(tmp_path):
    begun(tmp_path)
    before = (tmp_path / "recipe.json").read_bytes()
    Run(tmp_path).begin(tiny.recipe(), DATA)
    with pytest.raises(MismatchError) as caught:
        Run(tmp_path).begin(tiny.recipe(lr=0.5, seed=9), DATA)
    assert str(caught.value) == (
        f"recipe must be that of the run in {tmp_path} to resume it, got (old, new) optimizer.lr: 0.05, 0.5; seed: 0, 9"
    )
    with pytest.raises(MismatchError, match=r"data must be that of the run in .* to resume it, got other preproc"):
        Run(tmp_path).begin(
            tiny.recipe(), {**DATA, "preprocessing": {**DATA["preprocessing"], "mean": [1.0, 2.0, 3.0]}}
        )
    assert (tmp_path / "recipe.json").read_bytes() == before


def test_a_run_whose_recipe_is_lost_is_not_started_again(tmp_path):
    run = begun(tmp_path)
    run.save(state(3))
    (tmp_path / "recipe.json").unlink()
    for resume in (False, True):
        with pytest.raises(DamagedError, match=r"contains a state, but recipe\.json is missing: restore it"):
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
@pytest.mark.parametrize("of_format_1", [False, True])
def test_a_recipe_that_was_altered_is_rejected(tmp_path, change, of_format_1):
    begun(tmp_path)
    path = tmp_path / "recipe.json"
    if of_format_1:
        path.write_bytes(jsonfile.dumps({"recipe": tiny.FORMAT_1, "data": DATA}))
        assert Run(tmp_path).recipe == tiny.RECIPE
    changed = change(path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    # without a checksum, a field that was renamed may be one of a newer version
    with pytest.raises(
        StoreError if of_format_1 else DamagedError,
        match=r"recipe\.json (must be unaltered, got .*: restore the file|cannot be interpreted)",
    ):
        _ = Run(tmp_path).recipe


@pytest.mark.parametrize("of_format_1", [False, True])
def test_a_newer_field_in_a_recipe_is_not_said_to_be_damage(tmp_path, of_format_1):
    run = begun(tmp_path)
    recipe = tiny.FORMAT_1 if of_format_1 else tiny.RECIPE.written()
    content = {"recipe": {**recipe, "novelty": 1}, "data": DATA}
    sealed_content = sealed.encode("recipe", run.identity, content)
    (tmp_path / "recipe.json").write_bytes(jsonfile.dumps(content) if of_format_1 else sealed_content)
    with pytest.raises(StoreError, match=r"recipe\.json cannot be interpreted .*novelty.*: install a newer") as caught:
        _ = Run(tmp_path).recipe
    assert not isinstance(caught.value, DamagedError)


def lines_of(path):
    return (path / "log.jsonl").read_bytes().splitlines(keepends=True)


def noted(path):
    """A run with two lines in its log, and these lines."""
    run = begun(path)
    run.note("trained", step=5, loss=1.25)
    run.note("snapshot", step=10, test_error=0.5)
    return run, [{"event": "trained", "step": 5, "loss": 1.25}, {"event": "snapshot", "step": 10, "test_error": 0.5}]


def test_the_log_names_its_format_and_its_run_and_gives_back_its_lines(tmp_path):
    assert list(begun(tmp_path).log()) == []
    run, lines = noted(tmp_path)
    assert list(run.log()) == list(Run(tmp_path).log()) == lines
    head, first, _ = (json.loads(line) for line in lines_of(tmp_path))
    assert list(head.items())[:3] == [("format", 2), ("kind", "log"), ("run", run.identity)]
    assert list(first) == ["event", "step", "loss", "crc32"]
    checked = lines_of(tmp_path)[1].partition(b', "crc32"')[0] + b"}"
    assert int(first["crc32"], 16) == binascii.crc32(checked)


def test_a_line_that_was_cut_off_at_the_end_is_left_out_and_removed_by_the_next(tmp_path):
    run, lines = noted(tmp_path)
    path, whole = tmp_path / "log.jsonl", (tmp_path / "log.jsonl").read_bytes()
    last = lines_of(tmp_path)[-1]
    for cut in range(1, len(last)):
        path.write_bytes(whole[: -1 - cut])
        assert list(run.log()) == lines[:1]
    path.write_bytes(whole[:-1])  # only the end of the line is missing
    assert list(run.log()) == lines
    path.write_bytes(whole[:-5])
    Run(tmp_path).note("trained", step=15)
    assert list(run.log()) == [lines[0], {"event": "trained", "step": 15}]


def test_a_damaged_line_is_named(tmp_path):
    run, _ = noted(tmp_path)
    first, second, third = lines_of(tmp_path)
    (tmp_path / "log.jsonl").write_bytes(first + second.replace(b"1.25", b"1.26") + third)
    with pytest.raises(DamagedError, match=r"got checksum mismatch in line 2: restore the file"):
        list(run.log())
    (tmp_path / "log.jsonl").write_bytes(second + third)
    with pytest.raises(DamagedError, match=r"got no header of a log in line 1: restore"):
        list(run.log())


def test_a_log_of_a_newer_format_is_rejected_by_name(tmp_path):
    run, _ = noted(tmp_path)
    head = {"format": 3, "kind": "log"}
    checksum = f"{binascii.crc32(json.dumps(head).encode()):08x}"
    (tmp_path / "log.jsonl").write_text(json.dumps({**head, "crc32": checksum}) + "\n")
    with pytest.raises(StoreError, match=r"log\.jsonl must have format 2 or older, got 3: install a newer snapens"):
        list(run.log())


def test_a_log_that_cannot_be_read_or_is_too_large_is_an_error_of_our_own(tmp_path):
    run, _ = noted(tmp_path)
    path = tmp_path / "log.jsonl"
    with open(path, "wb") as file:
        file.truncate(8 << 30)  # a hole: it takes no room
    with pytest.raises(DamagedError, match=r"log\.jsonl must have at most 268435456 bytes"):
        list(run.log())
    path.unlink()
    path.mkdir()
    with pytest.raises(DamagedError, match=r"log\.jsonl must be a regular file"):
        list(run.log())
    with pytest.raises(StoreError):
        run.note("trained", step=15)


@pytest.mark.parametrize("content", [b"\n", b"[2]", b'{"event": "trained", "crc32": "00000000"}'])
def test_a_log_without_its_head_is_damaged_and_not_empty(tmp_path, content):
    run, _ = noted(tmp_path)
    (tmp_path / "log.jsonl").write_bytes(content)
    with pytest.raises(DamagedError, match=r"log\.jsonl must"):
        list(run.log())


def test_a_log_that_became_a_symbolic_link_is_not_written_through(tmp_path):
    run, _ = noted(tmp_path / "run")
    outside, path = tmp_path / "outside", tmp_path / "run/log.jsonl"
    path.rename(outside)
    before = outside.read_bytes()
    path.symlink_to(outside)
    with pytest.raises(DamagedError, match=r"log\.jsonl must be a regular file, got a symbolic link: remove the link"):
        run.note("trained", step=15)
    assert outside.read_bytes() == before


def test_bytes_of_a_log_that_are_not_text_are_an_error_of_our_own(tmp_path):
    run, _ = noted(tmp_path)
    with open(tmp_path / "log.jsonl", "ab") as file:
        file.write(b'{"event": "\xff\xfe", "crc32": "00000000"}\n')
    with pytest.raises(DamagedError, match=r"log\.jsonl must be unaltered, got .* in line"):
        list(run.log())


@pytest.mark.parametrize("save", [lambda run: run.save(state(15)), lambda run: run.note("finished")])
def test_the_log_is_synced_before_a_state_and_at_the_end(tmp_path, monkeypatch, save):
    run, _ = noted(tmp_path)
    run.note("trained", step=15)
    synced, fsync = [], os.fsync

    def noting(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    save(run)
    assert synced[0] == (tmp_path / "log.jsonl").stat().st_ino


def test_a_log_that_cannot_be_synced_is_an_error_of_our_own(tmp_path, monkeypatch):
    run, _ = noted(tmp_path)
    monkeypatch.setattr(os, "fsync", failing(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StoreError, match=r"log\.jsonl could not be written \(.*Input/output error"):
        run.save(state(15))
    monkeypatch.undo()
    assert run.state() is None


OUTPUTS = {"test": (torch.zeros(2, 3).half(), torch.tensor([0, 1]))}


@pytest.mark.parametrize(
    ("name", "write"),
    [("state", lambda run: run.save(state(4))), ("outputs", lambda run: run.add_outputs(4, OUTPUTS, "step-000000004"))],
)
def test_a_folder_that_is_a_symbolic_link_is_not_written_through(tmp_path, name, write):
    outside, run = tmp_path / "outside", begun(tmp_path / "run")
    outside.mkdir()
    (run.path / name).symlink_to(outside)
    with pytest.raises(StoreError, match=rf"{name} must be a folder, got a symbolic link: replace it by the folder"):
        write(run)
    assert not list(outside.iterdir())


def test_a_log_of_format_1_is_read_as_before_and_continued_in_format_2(tmp_path):
    run = begun(tmp_path)
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "trained", "step": 5}\n{"event": "tra\n{"event": "trained", "step": 10}\n{"event": "fi')
    assert [line["step"] for line in run.log()] == [5, 10]
    run.note("trained", step=15)
    assert [line["step"] for line in Run(tmp_path).log()] == [5, 10, 15]
    assert len(lines_of(tmp_path)) == 4
    assert all(b'"crc32"' in line for line in lines_of(tmp_path))


def test_a_line_that_could_be_written_only_in_part_is_removed_by_the_next(tmp_path, monkeypatch):
    run, lines = noted(tmp_path)

    class Full:
        def __init__(self, *args, **options):
            self.file = open(*args, **options)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, data):
            self.file.write(data[:9])
            raise OSError("no space left")

    monkeypatch.setattr("snapens.lab.records.log.open", Full, raising=False)
    with pytest.raises(StoreError, match=r"log\.jsonl could not be written \(no space left\); .*: free disk space"):
        run.note("trained", step=15)
    monkeypatch.undo()
    run.note("failed", reason="no space left")
    assert list(run.log()) == [*lines, {"event": "failed", "reason": "no space left"}]


def test_a_loss_that_json_lacks_is_not_noted(tmp_path):
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
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 5  # with the head


def test_a_run_is_finished_when_its_log_says_so_and_its_snapshots_exist(tmp_path):
    run = begun(tmp_path)
    kept(tmp_path, 10, 20)
    assert not run.finished
    run.note("finished", step=20)
    assert run.finished
    shutil.copy(tmp_path / "manifest.previous.json", tmp_path / "manifest.json")
    assert run.snapshots.steps == (10,)
    assert not run.finished


def test_a_state_comes_back_and_the_one_before_stays(tmp_path):
    run = begun(tmp_path)
    assert run.state() is None
    for completed in (0, 4, 9):
        run.save(state(completed))
        assert_state(run.state(), completed)
        assert_state(Run(tmp_path).state(), completed)
    files = sorted(path.name.partition("-")[0] for path in (tmp_path / "state").iterdir())
    assert files == ["state.json", "state.previous.json", "step", "step"]


def test_temporary_files_of_killed_writers_are_removed_with_the_next_state(tmp_path):
    run = begun(tmp_path)
    names = (
        "recipe.json",
        "log.jsonl",
        "curves.json",
        "state/state.json",
        "state/step-000000004-0123456789ab.safetensors",
    )
    run.save(state(0))
    left = [tmp_path / f"{name}.ba9876543210.part" for name in names]
    other = tmp_path / "combination.json.ba9876543210.part"  # another process may be writing it
    for path in (*left, other):
        path.touch()
    run.save(state(4))
    assert not any(path.exists() for path in left)
    assert other.exists()
    assert run.recipe == tiny.RECIPE


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
def test_a_damaged_state_is_replaced_by_the_one_before(tmp_path, caplog, damage):
    run = begun(tmp_path)
    for completed in (4, 9):
        run.save(state(completed))
    damage(tmp_path)
    with caplog.at_level(logging.WARNING, "snapens"):
        assert_state(Run(tmp_path).state(), 4)
    assert ("continuing from the previous state" in caplog.text) == (tmp_path / "state" / "state.json").exists()


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
    with pytest.raises(DamagedError, match=r"must have the SHA-256 in state\.previous\.json, but it was altered"):
        Run(tmp_path).state()
    (tmp_path / "state" / "state.previous.json").write_bytes(b"{")
    with pytest.raises(DamagedError, match=r"state\.previous\.json must be unaltered, got Expecting"):
        Run(tmp_path).state()


def as_format_1(path):
    """Rewrite a state.json as format 1 had it."""
    content = json.loads(path.read_bytes())
    kept = {name: content[name] for name in ("completed", "file", "notes")}
    path.write_bytes(jsonfile.dumps({**kept, **content["digest"]}))
    return kept | content["digest"]


def test_a_state_cannot_point_out_of_its_folder(tmp_path):
    run = begun(tmp_path / "run")
    run.save(state(4))
    shutil.move(latest(tmp_path / "run"), tmp_path / "elsewhere")
    path = tmp_path / "run" / "state" / "state.json"
    about = as_format_1(path)
    for name in ("../../elsewhere", str(tmp_path / "elsewhere"), "..", ""):
        path.write_text(json.dumps({**about, "file": name}))
        with pytest.raises(DamagedError, match="must be unaltered, got file must be a plain name"):
            Run(tmp_path / "run").state()


def test_a_state_of_format_1_is_read_and_stays_until_the_next_but_one(tmp_path):
    run = begun(tmp_path)
    run.save(state(4))
    as_format_1(tmp_path / "state" / "state.json")
    resumed = Run(tmp_path)
    assert_state(resumed.state(), 4)
    resumed.save(state(9))
    assert json.loads((tmp_path / "state/state.json").read_bytes())["format"] == 2
    latest(tmp_path).unlink()
    assert_state(Run(tmp_path).state(), 4)


def test_a_state_whose_count_is_not_that_of_its_file_is_rejected(tmp_path):
    run = begun(tmp_path)
    run.save(state(4))
    path = tmp_path / "state" / "state.json"
    path.write_text(json.dumps({**as_format_1(path), "completed": 5}))
    with pytest.raises(DamagedError, match="got file must be one of step 5, got step-000000004"):
        Run(tmp_path).state()


def test_a_state_that_the_disk_cannot_read_is_not_replaced_by_the_one_before(tmp_path, monkeypatch):
    run = begun(tmp_path)
    for completed in (4, 9):
        run.save(state(completed))
    opened, current = os.open, latest(tmp_path)

    def broken(path, *args, **options):
        if str(path) == str(current):
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(StoreError, match=r"could not be read \(.*Input/output error") as caught:
        Run(tmp_path).state()
    assert not isinstance(caught.value, DamagedError)


def test_a_state_that_the_disk_cannot_find_is_not_replaced_by_the_one_before(tmp_path, monkeypatch):
    run, found = begun(tmp_path), Path.stat
    for completed in (4, 9):
        run.save(state(completed))

    def broken(path, **options):
        if path.name == "state.json":
            raise OSError(errno.EIO, "Input/output error")
        return found(path, **options)

    monkeypatch.setattr(Path, "stat", broken)
    with pytest.raises(StoreError, match=r"state\.json could not be read .*Input/output error") as caught:
        Run(tmp_path).state()
    assert not isinstance(caught.value, DamagedError)


SWAPS = {
    "recipe": ("recipe.json", lambda run: run.recipe),
    "log": ("log.jsonl", lambda run: list(run.log())),
    "state": ("state", lambda run: run.state()),
    "outputs": ("outputs", lambda run: run.outputs()),
    "curves": ("curves.json", lambda run: run.curves()),
    "gallery": ("gallery.json", gallery.read),
}


@pytest.mark.parametrize(("name", "read"), SWAPS.values(), ids=SWAPS)
def test_a_file_of_another_run_is_rejected(tmp_path, name, read):
    for folder in ("a", "b"):
        run = begun(tmp_path / folder)
        kept(run.path, 10, 20)
        for step in (10, 20):
            run.add_outputs(step, {"test": (member(step), LABELS)})
        run.save(state(4))
        run.note("trained", step=5)
        run.keep_curves(Between((0.0, 0.5, 1.0), (Line(1, (1.0, 2.0, 3.0), (1.0, 2.0, 3.0)),), "nothing"))
        gallery.keep(run, np.zeros((6, 4, 4, 1), np.uint8).__getitem__)
        read(Run(run.path))
    target = tmp_path / "a" / name
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    (shutil.copytree if (tmp_path / "b" / name).is_dir() else shutil.copy)(tmp_path / "b" / name, target)
    with pytest.raises(DamagedError, match="must belong to run"):
        read(Run(tmp_path / "a"))


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


def test_the_finish_event_is_the_last_one_and_other_lines_are_ignored(tmp_path):
    run = begun(tmp_path)
    assert run.finish_event is None
    (tmp_path / "log.jsonl").write_text('{"event": "finished", "seconds": 1}\n{"note": "mine"}\n')
    run.note("finished", seconds=2)
    assert run.finish_event == {"event": "finished", "seconds": 2}


def test_the_outputs_of_members_are_kept_one_after_the_other(tmp_path):
    run = begun(tmp_path)
    kept(tmp_path, 10, 20, 30)
    for step in (10, 20, 30):
        before = {path: path.read_bytes() for path in (tmp_path / "outputs").glob("*.safetensors")}
        run.add_outputs(step, {"test": (member(step), LABELS), "held_out": (member(-step, 3), LABELS[:3])})
        assert all(path.read_bytes() == content for path, content in before.items())
        assert len(list((tmp_path / "outputs").glob("*.safetensors"))) == max(len(before), 2) + 2
    for part, sign in (("test", 1), ("held_out", -1)):
        outputs = run.outputs(part)
        rows = 6 if sign == 1 else 3
        assert outputs.steps == (10, 20, 30)
        assert outputs.log_probabilities.shape == (3, rows, 4)
        assert outputs.log_probabilities.dtype == np.float16
        for k, step in enumerate((10, 20, 30)):
            assert np.array_equal(outputs.log_probabilities[k], member(sign * step, rows).numpy())
        assert outputs.labels.tolist() == LABELS.tolist()[:rows]


def test_outputs_of_a_replaced_snapshot_are_dropped_once_it_is_gone(tmp_path):
    run = begun(tmp_path)
    store = Snapshots(tmp_path)
    store.open_to_write()
    for step, seed in ((10, 1), (20, 2), (30, 3)):
        run.add_outputs(step, {"test": (member(seed), LABELS)}, store.reserve(step))
        store.commit(step, {"weight": torch.full((2,), float(seed))})
    store.rewind(10)
    run.add_outputs(20, {"test": (member(4), LABELS)}, store.reserve(20))
    # a kill at this moment: the manifest still has the old snapshots, and their outputs are still there
    assert np.array_equal(run.outputs().log_probabilities, np.stack([member(k).numpy() for k in (1, 2, 3)]))
    store.commit(20, {"weight": torch.full((2,), 4.0)})
    assert np.array_equal(run.outputs().log_probabilities, np.stack([member(k).numpy() for k in (1, 4)]))
    run.add_outputs(30, {"test": (member(5), LABELS)}, store.reserve(30))
    store.commit(30, {"weight": torch.full((2,), 5.0)})
    assert len(list((tmp_path / "outputs").glob("test-step-*"))) == 3
    store.close()


def test_outputs_are_those_of_committed_snapshots_alone(tmp_path):
    run = begun(tmp_path)
    store = Snapshots(tmp_path)
    store.open_to_write()
    run.add_outputs(10, {"test": (member(10), LABELS)}, store.reserve(10))
    store.commit(10, {"weight": torch.zeros(1)})
    run.add_outputs(20, {"test": (member(20), LABELS)}, store.reserve(20))  # killed before it was committed
    store.close()
    assert run.outputs().steps == (10,)
    assert np.array_equal(run.outputs().log_probabilities, member(10).numpy()[None])


def test_members_whose_outputs_are_intact_are_found(tmp_path):
    run = begun(tmp_path)
    kept(tmp_path, 10, 20)
    run.add_outputs(10, {"test": (member(1), LABELS)})
    assert run.intact_outputs("test") == {10}
    assert run.intact_outputs("held_out") == set()
    (path,) = (tmp_path / "outputs").glob("test-step-*")
    flipped(path, -1)
    assert run.intact_outputs("test") == set()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("outputs.safetensors", lambda run: format_1.adopt_outputs(run, ["test"])),
        ("manifest.json", lambda run: run.recipe),
        ("state.previous.json", lambda run: run.state()),
    ],
)
def test_a_disk_that_cannot_find_a_file_is_an_error_of_our_own(tmp_path, monkeypatch, name, read):
    run, found = Run(tmp_path), Path.stat
    if name == "state.previous.json":
        run = begun(tmp_path)
        run.save(state(4))
        (tmp_path / "state/state.json").write_bytes(b"{")

    def broken(path, **options):
        if path.name == name:
            raise OSError(errno.EIO, "Input/output error")
        return found(path, **options)

    monkeypatch.setattr(Path, "stat", broken)
    with pytest.raises(StoreError, match=rf"{name} could not be read .*Input/output error"):
        read(run)


@pytest.mark.parametrize("listing", [parts.names, runs_in])
def test_a_folder_that_the_disk_cannot_list_is_not_taken_for_empty(tmp_path, monkeypatch, listing):
    (tmp_path / "outputs").mkdir()
    monkeypatch.setattr(os, "listdir", failing(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StoreError, match=r"could not be read .*Input/output error"):
        listing(tmp_path)


def test_outputs_that_the_disk_cannot_read_are_not_taken_for_absent(tmp_path, monkeypatch):
    run, opened = begun(tmp_path), os.open
    kept(tmp_path, 10)
    run.add_outputs(10, {"held_out": (member(1), LABELS)})

    def broken(path, *args, **options):
        if str(path).endswith("held_out.json"):
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(StoreError, match=r"held_out\.json could not be read .*Input/output error"):
        run.has_outputs("held_out")
    assert not run.has_outputs("test")


def test_probabilities_add_up_to_one_and_errors_are_counted_by_hand():
    members = np.array([[[0.6, 0.4], [0.3, 0.7], [0.9, 0.1]], [[0.1, 0.9], [0.2, 0.8], [0.2, 0.8]]])
    outputs = Outputs((("a", 1), ("a", 2)), np.log(members).astype(np.float16), np.array([0, 1, 0]))
    assert np.allclose(outputs.probabilities, members, atol=1e-3)
    assert np.allclose(outputs.probabilities.sum(-1), 1, atol=1e-12)
    assert outputs.member_errors == pytest.approx([0, 2 / 3])
    # the last alone; both: (0.35, 0.65), (0.25, 0.75), (0.55, 0.45)
    assert outputs.ensemble_errors == pytest.approx([2 / 3, 1 / 3])


def test_pixels_are_prepared_as_they_were_for_training(tmp_path):
    data = tiny.data()
    Run(tmp_path).begin(tiny.recipe(), data.described())
    placed = data.place(torch.device("cpu"))
    found = Run(tmp_path).preprocessing(data.test.pixels)
    assert torch.equal(found, next(placed.batches(data.test)))
    mean, deviation = data.normalisation()
    expected = (data.test.pixels - np.array(mean)) / np.array(deviation)
    assert np.abs(found.permute(0, 2, 3, 1).numpy() - expected).max() < 1e-6
    assert repr(Run("runs/a")) == "Run('runs/a')"


def test_a_run_without_a_description_of_its_preprocessing_says_so(tmp_path):
    Run(tmp_path).begin(tiny.RECIPE, {"classes": ["a", "b"]})
    with pytest.raises(
        StoreError, match=r"recipe.json must describe the preprocessing of the run, but that in .* does"
    ):
        Run(tmp_path).ensemble()


def test_a_damaged_preprocessing_is_not_interpreted(tmp_path):
    run = begun(tmp_path)
    tiny.altered(run.path / "recipe.json", lambda text: text.replace('"deviation": [', '"deviation": [0.0, '))
    with pytest.raises(StoreError, match="deviation must have one number per mean"):
        Run(tmp_path).data  # noqa: B018


def with_snapshots(path, network="tiny:net"):
    """A run of two snapshots, and its network with the weights of the last one."""
    run = begun(path, tiny.recipe(network=network))
    model = tiny.net(classes=4, channels=3).eval()
    snapshots = run.snapshots
    snapshots.open_to_write()
    for step in (4, 8):
        with torch.no_grad():
            model.head.weight.mul_(step)
        snapshots.commit(step, model.state_dict())
    snapshots.close()
    return run, model


def test_the_ensemble_of_a_run_takes_raw_examples_or_the_inputs_of_its_network(tmp_path):
    run, model = with_snapshots(tmp_path)
    pixels = tiny.data().test.pixels
    inputs = run.preprocessing(pixels)
    expected = model(inputs).softmax(-1)
    raw = run.ensemble(last=1)
    torch.testing.assert_close(raw(torch.from_numpy(pixels)), expected)
    torch.testing.assert_close(raw.predict([torch.from_numpy(pixels)]), expected)
    torch.testing.assert_close(run.ensemble(last=1, raw=False, resident=False)(inputs), expected)
    assert run.ensemble().steps == (4, 8)
    combination = Combination(((run.identity, 4),), temperature=2.0)
    assert run.ensemble(combination=combination).combination == combination


def test_a_network_of_ones_own_must_still_be_importable(tmp_path):
    run, _ = with_snapshots(tmp_path, network="gone:net")
    message = r"module:callable that Python can import, got 'gone:net' \(ModuleNotFoundError: .* PYTHONPATH"
    with pytest.raises(ArgumentError, match=message):
        run.ensemble()


def test_a_network_that_was_changed_since_the_training_is_rejected(tmp_path):
    run, _ = with_snapshots(tmp_path, network="tiny:wide")
    with pytest.raises(MismatchError, match="model must have the architecture of the snapshot of step"):
        run.ensemble()
