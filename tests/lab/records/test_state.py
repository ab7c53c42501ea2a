"""The states of a run: the last one, the one before, and damage."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import tiny
from begun_runs import assert_state, begun, flipped, state

from snapens.errors import DamagedError, StoreError
from snapens.lab.records.run import Run
from snapens.storage import durable, jsonfile


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
