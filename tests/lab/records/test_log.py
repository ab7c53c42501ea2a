"""The log of a run: what comes back, and what a damaged file gives."""

import binascii
import errno
import json
import math
import os
import shutil

import pytest
from begun_runs import begun, failing, kept, state

from snapens.errors import DamagedError, StoreError
from snapens.lab.records.run import Run


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


def test_the_finish_event_is_the_last_one_and_other_lines_are_ignored(tmp_path):
    run = begun(tmp_path)
    assert run.finish_event is None
    (tmp_path / "log.jsonl").write_text('{"event": "finished", "seconds": 1}\n{"note": "mine"}\n')
    run.note("finished", seconds=2)
    assert run.finish_event == {"event": "finished", "seconds": 2}
