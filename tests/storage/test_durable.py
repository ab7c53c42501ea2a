"""Files that are written completely or not at all."""

import pytest

from snapens.storage import durable


def test_two_writers_of_one_name_never_publish_a_mixture(tmp_path):
    first, second = bytes(100_000), bytes([1]) * 100_000

    def chunks():
        yield first[:50_000]
        assert durable.publish(tmp_path / "a", [second]).bytes == 100_000
        assert (tmp_path / "a").read_bytes() == second
        yield first[50_000:]

    durable.publish(tmp_path / "a", chunks())
    assert (tmp_path / "a").read_bytes() == first
    assert len(list(tmp_path.iterdir())) == 1


def test_publish_does_not_write_through_a_link_and_says_what_is_in_the_file(tmp_path, monkeypatch):
    (tmp_path / "outside").write_bytes(b"mine")
    monkeypatch.setattr(durable, "unique", lambda: "0123456789ab")
    (tmp_path / "a.0123456789ab.part").symlink_to(tmp_path / "outside")
    with pytest.raises(FileExistsError):
        durable.publish(tmp_path / "a", [b"some"])
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_publish_leaves_no_temporary_file_when_it_fails(tmp_path):
    def chunks():
        yield b"some"
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError, match="the source failed"):
        durable.publish(tmp_path / "a", chunks())
    assert list(tmp_path.iterdir()) == []


def test_publish_says_what_it_wrote(tmp_path):
    written = durable.publish(tmp_path / "a", [b"a", memoryview(b"bc")])
    assert (tmp_path / "a").read_bytes() == b"abc"
    assert written == durable.digest(tmp_path / "a")
    assert (
        written.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )  # FIPS 180-2, appendix B
