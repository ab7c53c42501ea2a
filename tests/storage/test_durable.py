"""Files that are written completely or not at all."""

import errno
import os
import stat

import pytest

from snapens import Snapshots
from snapens.errors import StoreError
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


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free disk space, or choose another folder, then try again"),
        (errno.EIO, "free disk space, or choose another folder, then try again"),
        (errno.EACCES, "check the permissions, or choose another folder, then try again"),
        (errno.EROFS, "check the permissions, or choose another folder, then try again"),
        (errno.ENOSYS, "this file system may have no locks; choose a folder on a local disk"),
    ],
)
def test_the_remedy_depends_on_the_reason(number, remedy):
    with pytest.raises(StoreError) as raised, durable.writing("it"):
        raise OSError(number, os.strerror(number))
    expected = f"it could not be written ([Errno {number}] {os.strerror(number)}); earlier files are intact: {remedy}"
    assert str(raised.value) == expected


def test_a_folder_that_cannot_be_synced_is_used_all_the_same(tmp_path, monkeypatch):
    """As on CIFS and in shared folders of virtual machines; every other error is one."""
    sync = os.fsync

    def refusing(number):
        def fsync(descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(number, os.strerror(number))
            sync(descriptor)

        return fsync

    monkeypatch.setattr(os, "fsync", refusing(errno.EINVAL))
    assert durable.write(tmp_path / "a/b", b"some").read_bytes() == b"some"
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO))
    with pytest.raises(StoreError, match="Input/output error"):
        durable.write(tmp_path / "c", b"some")


def test_a_file_in_the_place_of_a_folder_or_the_other_way_round_is_named(tmp_path):
    (tmp_path / "file").touch()
    for store in (tmp_path / "file", tmp_path / "file/run"):
        with pytest.raises(StoreError, match=r"file.*: a file is where a folder must be; choose another path"):
            Snapshots(store).open_to_write()
    with pytest.raises(StoreError, match="intact: a folder is where the file must be; choose another path"):
        durable.write(tmp_path, b"some")


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
