"""The outputs of a user's own loop: saved into a run folder and read by anyone."""

import json
import shutil
import threading

import numpy as np
import pytest
import torch

from snapens import Snapshots
from snapens.errors import ArgumentError, DamagedError, LockedError, MismatchError, StoreError
from snapens.outputs import Outputs
from snapens.storage import durable, manifest, parts, tensorfile
from snapens.storage.lock import WriterLock

LABELS = np.array([0, 1, 2, 0], np.int64)


def rows(seed, classes=3):
    logits = torch.randn(4, classes, generator=torch.Generator().manual_seed(seed))
    return logits.log_softmax(-1).half().numpy()


def members(folder, *steps):
    return tuple((Snapshots(folder).identity["run"], step) for step in steps)


def outputs(folder, *steps, labels=LABELS):
    return Outputs(members(folder, *steps), np.stack([rows(step) for step in steps]), labels)


@pytest.fixture
def folder(tmp_path):
    store = Snapshots(tmp_path / "run")
    store.open_to_write()
    for step in (4, 8):
        store.commit(step, {"w": torch.full((1,), float(step))})
    store.close()
    return tmp_path / "run"


def test_outputs_are_saved_and_loaded_by_part(folder):
    outputs(folder, 4, 8).save(folder, "held_out")
    found = Outputs.load(folder, "held_out")
    assert found.steps == (4, 8)
    assert np.array_equal(found.log_probabilities, np.stack([rows(4), rows(8)]))
    assert np.array_equal(found.labels, LABELS)
    content = json.loads((folder / "outputs/held_out.json").read_text())
    assert (content["kind"], content["examples"], content["classes"]) == ("outputs", 4, 3)
    snapshots = Snapshots(folder).identity["snapshots"]
    assert {member["step"]: member["snapshot"] for member in content["members"]} == snapshots
    with pytest.raises(StoreError) as raised:
        Outputs.load(folder)
    assert str(raised.value) == (
        f"{folder} contains no outputs of the part 'test', only of held_out: choose held_out, or save them with "
        f"Ensemble.load('{folder}', model).outputs(loader).save('{folder}', part='test')"
    )


def test_test_outputs_are_not_proposed_instead_of_held_out_ones(folder):
    for found in ("", ", only of test"):
        with pytest.raises(StoreError) as raised:
            Outputs.load(folder, "held_out")
        assert str(raised.value) == (
            f"{folder} contains no outputs of the part 'held_out'{found}: save them with "
            f"Ensemble.load('{folder}', model).outputs(loader).save('{folder}', part='held_out')"
        )
        outputs(folder, 4, 8).save(folder, "test")


def test_saving_again_replaces_what_was_there(folder):
    outputs(folder, 4, 8).save(folder, "test")
    other = Outputs(members(folder, 4, 8), np.stack([rows(1), rows(2)]), LABELS[::-1].copy())
    other.save(folder, "test")
    found = Outputs.load(folder)
    assert np.array_equal(found.log_probabilities, other.log_probabilities)
    assert np.array_equal(found.labels, other.labels)
    assert len(list((folder / "outputs").glob("*.safetensors"))) == 3
    assert not list((folder / "outputs").glob("*.part"))


def test_one_member_is_appended_and_the_others_are_not_written_again(folder):
    outputs(folder, 8).append(folder, "test")
    with pytest.raises(DamagedError, match="those of step 4 are missing: save the outputs of all members again"):
        Outputs.load(folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "outputs").glob("*.safetensors")}
    outputs(folder, 4).append(folder, "test")
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert Outputs.load(folder).steps == (4, 8)


def test_a_part_with_other_labels_or_classes_is_not_mixed_with_the_one_that_is_there(folder):
    outputs(folder, 4).append(folder, "test")
    for other in (
        outputs(folder, 8, labels=LABELS[::-1].copy()),
        Outputs(members(folder, 8), rows(8, classes=5)[None], LABELS),
    ):
        with pytest.raises(MismatchError, match="labels and classes must be those of the outputs of 'test'"):
            other.append(folder, "test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"members": (("a", 4),)},
            r"float16 of shape \(1 members, examples, classes\), got float16 of shape \(2, 4, 3\)",
        ),
        ({"log_probabilities": np.zeros((2, 4, 3))}, "float16 of shape .* got float64"),
        ({"log_probabilities": np.zeros((2, 4), np.float16)}, "got float16 of"),
        ({"log_probabilities": np.zeros((2, 0, 3), np.float16)}, "got float16 of"),
        ({"log_probabilities": np.full((2, 4, 3), np.nan, np.float16)}, "must not contain NaN"),
        ({"log_probabilities": np.full((2, 4, 3), -np.inf, np.float16)}, "nor -inf for all classes"),
        (
            {"labels": LABELS[:3]},
            r"labels must be int64, one per example \(4\), from 0 to 2, got int64 of shape \(3,\)",
        ),
        ({"labels": LABELS.astype(np.int32)}, "labels must be int64"),
        ({"labels": LABELS + 5}, r"from 0 to 2, got values from 5 to 7: convert them to class indices$"),
        ({"labels": LABELS - 1}, r"from 0 to 2, got values from -1 to 1: convert"),
    ],
)
def test_outputs_that_break_a_rule_are_rejected(change, message):
    values = {"members": (("a", 4), ("a", 8)), "log_probabilities": np.stack([rows(4), rows(8)]), "labels": LABELS}
    with pytest.raises(ArgumentError, match=message):
        Outputs(**{**values, **change})


def test_a_part_must_have_a_plain_name_and_a_member_a_snapshot(folder, tmp_path):
    for part in ("", "../x", "a/b", "a.json", "é"):
        with pytest.raises(ArgumentError, match="part must be a plain name"):
            outputs(folder, 4, 8).save(folder, part)
    with pytest.raises(
        ArgumentError, match=r"members must be snapshots of the run in .*, steps \[4, 8\]\), got \[\('.*', 12\)\]"
    ):
        outputs(folder, 4, 8, 12).save(folder, "test")
    with pytest.raises(ArgumentError, match=r"those of one member to be appended, got 2: use save\(\)"):
        outputs(folder, 4, 8).append(folder, "test")
    with pytest.raises(StoreError, match=r"must be a folder that holds manifest\.json"):
        outputs(folder, 4).save(tmp_path / "none", "test")
    assert not (folder / "outputs").exists()


def test_outputs_that_are_written_before_their_snapshot_are_not_read(tmp_path):
    store = Snapshots(tmp_path)
    store.open_to_write()
    outputs(tmp_path, 4).append(tmp_path, "test", store.reserve(4))
    with pytest.raises(StoreError, match="contains no snapshot yet: wait for the first minimum"):
        Outputs.load(tmp_path)
    store.commit(4, {"w": torch.ones(1)})
    assert Outputs.load(tmp_path).steps == (4,)


def test_outputs_of_a_run_that_was_started_again_are_rejected(folder):
    outputs(folder, 4, 8).save(folder, "test")
    store = Snapshots(folder)
    (folder / "manifest.json").unlink()
    shutil.rmtree(folder / "snapshots")
    (folder / "manifest.previous.json").unlink()
    store.open_to_write()
    store.close()
    with pytest.raises(DamagedError, match="must belong to run"):
        Outputs.load(folder)


@pytest.mark.parametrize("name", ["test.json", "test-labels-*", "test-step-000000004-*"])
def test_every_file_of_a_part_is_checked(folder, name):
    outputs(folder, 4, 8).save(folder, "test")
    (path,) = (folder / "outputs").glob(name)
    whole = path.read_bytes()
    for place in range(len(whole)):
        altered = bytearray(whole)
        altered[place] ^= 1 << place % 8
        path.write_bytes(altered)
        with pytest.raises(StoreError):
            Outputs.load(folder)
    path.write_bytes(whole)
    assert Outputs.load(folder).steps == (4, 8)


def test_one_writer_at_a_time_and_a_full_disk_is_an_error_of_our_own(folder, monkeypatch):
    outputs(folder, 4, 8).save(folder, "test")
    lock = WriterLock(folder / "outputs/writer.lock")
    monkeypatch.setattr(parts, "_LOCK_SECONDS", 0.0)
    with pytest.raises(LockedError):
        outputs(folder, 4, 8).save(folder, "test")
    lock.release()

    def full(path, content):
        raise OSError("no space left")

    monkeypatch.setattr(durable, "publish", full)
    with pytest.raises(StoreError, match=r"outputs of the part 'other' in .* could not be written \(no space left\)"):
        outputs(folder, 4, 8).save(folder, "other")
    assert Outputs.load(folder).steps == (4, 8)


def test_outputs_that_another_process_saves_during_a_save_are_not_overwritten(folder, monkeypatch):
    outputs(folder, 4, 8).save(folder, "test")
    path, save = folder / "outputs/test.json", tensorfile.save

    def meanwhile(*args):
        path.write_bytes(b"saved by a process that got the lock, because shutil.copytree dropped it")
        return save(*args)

    monkeypatch.setattr(tensorfile, "save", meanwhile)
    with pytest.raises(StoreError, match=r"one writer, but another process changed .*test\.json: stop the other"):
        outputs(folder, 8).append(folder, "test")
    assert path.read_bytes().startswith(b"saved by")


def test_the_lock_of_outputs_is_required_when_they_are_published(folder, monkeypatch):
    ensured, publish, ensure = [], durable.publish, WriterLock.ensure
    monkeypatch.setattr(WriterLock, "ensure", lambda lock: ensured.append("lock") or ensure(lock))
    monkeypatch.setattr(durable, "publish", lambda path, content: ensured.append(path.suffix) or publish(path, content))
    outputs(folder, 4, 8).save(folder, "test")
    assert ensured == ["lock", *[".safetensors"] * 3, "lock", ".json"]


def test_a_damaged_index_is_an_error_and_no_file_is_removed(folder):
    outputs(folder, 4, 8).save(folder, "test")
    path = folder / "outputs/test.json"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    before = sorted((folder / "outputs").iterdir())
    with pytest.raises(DamagedError, match=r"test\.json must be"):
        outputs(folder, 8).append(folder, "test")
    assert sorted((folder / "outputs").iterdir()) == before
    outputs(folder, 4, 8).save(folder, "test")  # all of them, so nothing is lost
    assert Outputs.load(folder).steps == (4, 8)


def test_a_writer_waits_until_another_has_saved(folder):
    outputs(folder, 4, 8).save(folder, "test")
    held = WriterLock(folder / "outputs" / "writer.lock")
    waiting = threading.Thread(target=outputs(folder, 4, 8).save, args=(folder, "held_out"))
    waiting.start()
    assert not (folder / "outputs/held_out.json").exists()
    held.release()
    waiting.join(60)
    assert Outputs.load(folder, "held_out").steps == (4, 8)


def test_a_reader_reads_again_what_a_writer_replaced_meanwhile(folder, monkeypatch):
    outputs(folder, 4, 8).save(folder, "test")
    other = Outputs(members(folder, 4, 8), np.stack([rows(1), rows(2)]), LABELS)
    member, replaced = parts.PartFolder.member, []

    def late(self, step):
        if not replaced:
            replaced.append(True)
            self._index  # read before the other process replaced it  # noqa: B018
            other.save(folder, "test")
        return member(self, step)

    monkeypatch.setattr(parts.PartFolder, "member", late)
    assert np.array_equal(Outputs.load(folder).log_probabilities, other.log_probabilities)


def test_a_reader_reads_again_if_a_snapshot_was_replaced_after_it_read_the_manifest(folder, monkeypatch):
    outputs(folder, 4, 8).save(folder, "test")
    read, replaced = manifest.read, []

    def replaced_afterwards(path):
        found = read(path)
        if not replaced:
            replaced.append(True)
            store = Snapshots(folder)
            store.open_to_write(resume=True)
            store.rewind(4)
            store.commit(8, {"w": torch.zeros(1)})
            store.close()
            outputs(folder, 4, 8).save(folder, "test")
        return found

    monkeypatch.setattr(parts.manifest, "read", replaced_afterwards)
    assert Outputs.load(folder).steps == (4, 8)
    assert replaced


def test_members_are_distinct():
    with pytest.raises(ArgumentError, match="members must be distinct"):
        Outputs((("a", 4), ("a", 4)), np.stack([rows(1), rows(2)]), LABELS)


def test_outputs_of_another_run_or_without_some_snapshots_are_not_saved(folder):
    foreign = Outputs((("b", 4), ("b", 8)), np.stack([rows(4), rows(8)]), LABELS)
    with pytest.raises(ArgumentError, match=r"members must be snapshots of the run .* got \[\('b', 4\), \('b', 8\)\]"):
        foreign.save(folder, "test")
    with pytest.raises(ArgumentError, match=r"every snapshot in .*, but those of steps \[4\] are missing: compute"):
        outputs(folder, 8).save(folder, "test")
    assert not (folder / "outputs").exists()


def test_outputs_know_their_part_once_they_were_saved_or_loaded(folder):
    unsaved = outputs(folder, 4, 8)
    assert unsaved.part is None
    assert unsaved.save(folder, "held_out").part == Outputs.load(folder, "held_out").part == "held_out"


def test_the_errors_of_members_and_of_the_last_ones_together_are_fractions():
    probabilities = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.3, 0.7], [0.2, 0.8]]])
    found = Outputs((("a", 4), ("a", 8)), np.log(probabilities).astype(np.float16), np.array([0, 1]))
    assert found.steps == (4, 8)
    assert found.member_errors == [0.0, 0.5]
    assert found.ensemble_errors == [0.5, 0.0]  # the mean of 0.9 and 0.3 is 0.6
    assert np.abs(found.probabilities - probabilities).max() < 1e-3
