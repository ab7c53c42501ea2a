import json
import random

import pytest

from snapens.errors import DamagedError, SnapensError, StoreError
from snapens.storage.durable import Digest
from snapens.storage.manifest import Manifest, Record

SOUND = Manifest(
    "a" * 32, {"one.st": Digest("0" * 64, 10)}, (Record(4, "one.st", {"tied": ("one.st", "first")}),)
).adding(Record(8, "two.st", {"frozen": ("one.st", "frozen")}), Digest("1" * 64, 20))


def read(tmp_path, content):
    path = tmp_path / "manifest.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return Manifest.read(path)


def sound():
    return json.loads(SOUND.dumps())


def test_a_manifest_survives_writing_and_reading(tmp_path):
    assert read(tmp_path, SOUND.dumps()) == SOUND


def test_going_back_forgets_later_snapshots_and_the_files_only_they_need():
    back = SOUND.upto(7)
    assert [record.step for record in back.snapshots] == [4]
    assert list(back.files) == ["one.st"]
    assert SOUND.upto(8) == SOUND


def changed(change):
    content = sound()
    change(content)
    return content


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
        changed(lambda c: c.update(more=1)),
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
def test_a_manifest_that_cannot_be_right_is_refused_and_the_one_before_is_named(tmp_path, content):
    with pytest.raises(DamagedError, match=r"must be a manifest as snapens wrote it, got .*; restore the file"):
        read(tmp_path, content)
    (tmp_path / "manifest.previous.json").touch()
    with pytest.raises(DamagedError, match=r"manifest\.previous\.json beside it is the one before: copy it over"):
        read(tmp_path, content)


def test_a_manifest_that_cannot_be_read_is_not_said_to_be_damaged(tmp_path):
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(StoreError, match=r"manifest\.json could not be read \(.*\): check who may read it"):
        Manifest.read(tmp_path / "manifest.json")


def test_a_newer_format_asks_for_a_newer_snapens(tmp_path):
    with pytest.raises(StoreError, match="format 1 or older to be read here, got 2: install a newer snapens"):
        read(tmp_path, {**sound(), "format": 2, "news": True})


def test_a_manifest_too_large_to_be_one_is_not_read(tmp_path):
    with open(tmp_path / "manifest.json", "wb") as file:
        file.truncate(1 << 29)
    with pytest.raises(DamagedError, match="larger than"):
        Manifest.read(tmp_path / "manifest.json")


@pytest.mark.long
def test_fifty_thousand_mutilated_manifests_give_our_error_or_a_manifest(tmp_path):
    rng, refused = random.Random(0), 0
    for _ in range(50_000):
        bad = bytearray(SOUND.dumps())
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(len(bad))] = rng.choice(b'{}[]",:0123456789.-_abcNI\\/ \xff')
        try:
            found = read(tmp_path, bytes(bad))
            assert all(".." not in name and "/" not in name for name in found.files)
        except SnapensError:
            refused += 1
    assert refused > 10_000
