import json
import random

import pytest

from snapens.errors import DamagedError, SnapensError, StoreError
from snapens.storage import manifest, sealed
from snapens.storage.durable import Digest
from snapens.storage.manifest import Manifest, Record

RUN = "a" * 32
SOUND = Manifest((Record("one.st", Digest("0" * 64, 10), 4), Record("two.st", Digest("1" * 64, 20), 8, True)))
FORMAT_1 = {
    "format": 1,
    "run": RUN,
    "files": {"one.st": {"sha256": "0" * 64, "bytes": 10}, "two.st": {"sha256": "1" * 64, "bytes": 20}},
    "snapshots": [
        {"step": 4, "file": "one.st", "shared": {"tied": ["one.st", "first"]}},
        {"step": 8, "file": "two.st", "shared": {"frozen": ["one.st", "frozen"]}},
    ],
}


def read(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return manifest.read(tmp_path)


def test_a_manifest_survives_writing_and_reading(tmp_path):
    found = read(tmp_path, SOUND.encode(RUN))
    assert (found.value, found.run) == (SOUND, RUN)


def test_a_snapshot_is_a_step_a_file_its_digest_and_whether_it_is_partial():
    content = json.loads(SOUND.encode(RUN))
    assert content["snapshots"][1] == {
        "step": 8,
        "file": "two.st",
        "digest": {"sha256": "1" * 64, "bytes": 20},
        "partial": True,
    }
    assert (content["format"], content["kind"], content["run"]) == (2, "manifest", RUN)


def test_going_back_forgets_later_snapshots():
    assert SOUND.upto(7).snapshots == SOUND.snapshots[:1]
    assert SOUND.upto(8) == SOUND


def test_a_manifest_of_format_1_is_read_and_keeps_its_places_in_format_2(tmp_path):
    found = read(tmp_path, FORMAT_1)
    assert found.run == RUN
    assert [(one.step, one.file, one.digest.bytes) for one in found.value.snapshots] == [
        (4, "one.st", 10),
        (8, "two.st", 20),
    ]
    assert found.value.snapshots[1].elsewhere == {"frozen": ("one.st", "frozen")}
    assert read(tmp_path, found.value.encode(RUN)).value == found.value


def changed(change):
    content = json.loads(json.dumps(FORMAT_1))
    change(content)
    return content


def resealed(**changes):
    record = {"step": 4, "file": "one.st", "digest": {"sha256": "0" * 64, "bytes": 10}, "partial": False}
    return sealed.encode("manifest", RUN, {"snapshots": [{**record, **changes}]})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"format": 1, "format": 1}',
        b'{"format": NaN}',
        b"[" * 200_000,
        changed(lambda c: c.pop("run")),
        changed(lambda c: c.update(format=0)),
        changed(lambda c: c.update(format="1")),
        changed(lambda c: c.update(run=3)),
        changed(lambda c: c.update(files=[])),
        changed(lambda c: c.update(snapshots={})),
        changed(lambda c: c["files"].update({"../../etc/passwd": c["files"]["one.st"]})),
        changed(lambda c: c["files"].update({"/etc/passwd": c["files"]["one.st"]})),
        changed(lambda c: c["files"].update({"..": c["files"]["one.st"]})),
        changed(lambda c: c["files"].update({"a\\b": c["files"]["one.st"]})),
        changed(lambda c: c["files"]["one.st"].update(sha256="short")),
        changed(lambda c: c["files"]["one.st"].update(bytes="10")),
        changed(lambda c: c["files"]["one.st"].update(more=1)),
        changed(lambda c: c["snapshots"][0].update(step=8)),
        changed(lambda c: c["snapshots"][0].update(step=0)),
        changed(lambda c: c["snapshots"][0].update(step="4")),
        changed(lambda c: c["snapshots"][0].update(file="../x")),
        changed(lambda c: c["snapshots"][0].update(file="three.st")),
        changed(lambda c: c["snapshots"][0].update(shared={"a": ["two.st", "a"]})),
        changed(lambda c: c["snapshots"][0].update(shared={"a": ["one.st"]})),
        changed(lambda c: c["snapshots"][0].update(shared=[])),
        changed(lambda c: c["snapshots"][0].update(shared={"a": ["one.st", ["a"]]})),
        changed(lambda c: c["snapshots"][0].update(file=["one.st"])),
        changed(lambda c: c["snapshots"][0].update(shared={"a": [["one.st"], "a"]})),
    ],
)
def test_a_manifest_that_cannot_be_right_is_rejected_and_the_one_before_is_named(tmp_path, content):
    with pytest.raises(StoreError, match=r"(must be unaltered, got .*: restore the file|install a newer)"):
        read(tmp_path, content)
    (tmp_path / "manifest.previous.json").touch()
    with pytest.raises(StoreError, match=r"(copy the previous version, manifest\.previous|install a newer)"):
        read(tmp_path, content)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 0},
        {"step": "4"},
        {"file": "../x"},
        {"file": "/etc/passwd"},
        {"file": ".."},
        {"file": "a\\b"},
        {"digest": {"sha256": "short", "bytes": 10}},
        {"digest": {"sha256": "0" * 64, "bytes": -1}},
        {"partial": 1},
        {"elsewhere": {"a": ["two.st", "a"]}},
        {"more": 1},
    ],
)
def test_a_sealed_manifest_with_another_content_is_not_interpreted(tmp_path, changes):
    assert read(tmp_path, resealed()).value.upto(4) == SOUND.upto(4)
    with pytest.raises(StoreError, match="cannot be interpreted by this version of snapens"):
        read(tmp_path, resealed(**changes))


def test_two_snapshots_cannot_have_one_file(tmp_path):
    records = [{"step": step, "file": "a", "digest": {"sha256": "0" * 64, "bytes": 1}} for step in (4, 8)]
    with pytest.raises(StoreError, match="got the same file twice"):
        read(tmp_path, sealed.encode("manifest", RUN, {"snapshots": records}))


def test_a_folder_without_a_manifest_is_named(tmp_path):
    with pytest.raises(
        StoreError, match=rf"must be a folder that holds manifest\.json, got {tmp_path}: check the path"
    ):
        manifest.read(tmp_path)


def test_a_newer_format_is_rejected_by_name(tmp_path):
    with pytest.raises(StoreError, match="format 2 or older to be read here, got 3: install a newer snapens"):
        read(tmp_path, {**FORMAT_1, "format": 3, "news": True})


def test_a_manifest_too_large_to_be_one_is_not_read(tmp_path):
    with open(tmp_path / "manifest.json", "wb") as file:
        file.truncate(1 << 29)
    with pytest.raises(DamagedError, match="at most 268435456 bytes"):
        manifest.read(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("content", [SOUND.encode(RUN), json.dumps(FORMAT_1).encode()])
def test_twenty_five_thousand_mutilated_manifests_give_our_error_or_a_manifest(tmp_path, content):
    rng, rejected = random.Random(0), 0
    for _ in range(25_000):
        bad = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(len(bad))] = rng.choice(b'{}[]",:0123456789.-_abcNI\\/ \xff')
        try:
            found = read(tmp_path, bytes(bad)).value
            assert all(".." not in one.file and "/" not in one.file for one in found.snapshots)
        except SnapensError:
            rejected += 1
    assert rejected > 5_000
