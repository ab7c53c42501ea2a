import hashlib
import json
import os
from dataclasses import dataclass

import pytest

from snapens.errors import DamagedError, StoreError
from snapens.storage import durable, sealed

RUN = "a" * 32


@dataclass(frozen=True)
class Thing:
    size: int
    name: str = ""

    def __post_init__(self):
        if self.size < 0:
            raise ValueError("size must be at least 0")


def read(path, run=RUN, kind="thing"):
    raw = durable.contents(path)
    return sealed.decode(path, raw, kind, Thing, run=run, format_1=lambda content: Thing(content["old_size"]))


def resealed(**changes):
    """A file with a right checksum, worked out by the description in docs/reference/run-folder.md."""
    content = {"format": 2, "kind": "thing", "run": RUN, "size": 3, **changes}

    def lines(content):
        return "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in content.items()) + "\n}\n"

    checksum = hashlib.sha256(lines(content).encode()).hexdigest()
    return lines({**content, "sha256": checksum}).encode()


@pytest.fixture
def path(tmp_path):
    (tmp_path / "thing.json").write_bytes(sealed.encode("thing", RUN, {"size": 3, "name": "é"}))
    return tmp_path / "thing.json"


def test_what_is_sealed_is_read_back_and_its_encoding_is_the_documented_one(path):
    found = read(path)
    assert (found.value, found.run, found.content) == (Thing(3, "é"), RUN, path.read_bytes())
    assert sealed.encode("thing", RUN, {"size": 3, "name": "é"}) == resealed(name="é")
    assert read(path, run=None).value == Thing(3, "é")


def test_every_flipped_bit_is_detected(path):
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            altered = bytearray(whole)
            altered[place] ^= 1 << bit
            path.write_bytes(altered)
            with pytest.raises(StoreError):
                read(path)


def test_no_flipped_bit_is_taken_for_a_newer_format(path):
    whole = path.read_bytes()
    for digit in b"3456789":
        path.write_bytes(whole.replace(b'"format": 2', b'"format": ' + bytes([digit])))
        with pytest.raises(DamagedError, match="checksum mismatch"):
            read(path)


@pytest.mark.parametrize("cut", [0, 1, 30, -1])
def test_a_file_that_was_cut_off_is_damaged(path, cut):
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DamagedError, match=r"thing\.json must be unaltered, got .*: restore the file"):
        read(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"\n", b" "),
        lambda text: text.replace(b'"size": 3', b'"size": 03'),
        lambda text: text.replace(b'"size": 3', b'"size":3'),
        lambda text: text.replace(b'"size": 3', b'"size": 3,\n"size": 3'),
        lambda text: text + b" ",
        lambda text: b"\xef\xbb\xbf" + text,
    ],
)
def test_the_same_content_in_other_bytes_is_damaged(path, change):
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DamagedError):
        read(path)


def test_a_newer_format_is_rejected_by_name(path):
    for content in (resealed(format=3), b'{"format": 3, "unheard": "of"}'):
        path.write_bytes(content)
        with pytest.raises(
            StoreError, match="must have format 2 or older to be read here, got 3: install a newer"
        ) as e:
            read(path)
        assert not isinstance(e.value, DamagedError)


@pytest.mark.parametrize("change", [{"news": 1}, {"size": "3"}, {"size": -1}])
def test_an_intact_file_that_cannot_be_interpreted_comes_from_a_newer_version(path, change):
    path.write_bytes(resealed(**change))
    with pytest.raises(StoreError, match=r"cannot be interpreted by this version .*: install a newer") as e:
        read(path)
    assert not isinstance(e.value, DamagedError)


def test_a_file_of_another_run_or_kind_is_rejected(path):
    with pytest.raises(DamagedError, match=f"must belong to run {'b' * 32}, as the manifest does, got run {RUN}"):
        read(path, run="b" * 32)
    with pytest.raises(DamagedError, match="got a file of kind thing"):
        read(path, kind="state")


def test_format_1_is_decoded_by_its_own_rules(path):
    path.write_text('{"old_size": 7}')
    assert read(path).value == Thing(7)
    assert read(path).run is None
    path.write_text('{"format": 1, "run": "x", "old_size": 7}')
    assert read(path).run == "x"
    path.write_text('{"size": 7}')
    with pytest.raises(DamagedError, match="got 'old_size'"):
        read(path)


def test_a_file_that_cannot_be_read_is_not_said_to_be_damaged(path, monkeypatch):
    def broken(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.open", broken)
    with pytest.raises(StoreError, match=r"thing\.json could not be read \(.*Input/output error") as caught:
        read(path)
    assert not isinstance(caught.value, DamagedError)


def test_a_missing_file_is_the_callers_affair_and_a_folder_is_no_file(path):
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read(path)
    path.mkdir()
    with pytest.raises(DamagedError, match=r"thing\.json must be a regular file"):
        read(path)


def test_a_fifo_is_rejected_without_waiting_for_its_writer(path):
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamagedError, match="must be a regular file"):
        read(path)


def test_the_generation_before_is_named_if_there_is_one(path):
    path.write_bytes(b"{")
    path.with_name("thing.previous.json").touch()
    with pytest.raises(DamagedError, match=r"copy the previous version, thing\.previous\.json, over it"):
        read(path)
