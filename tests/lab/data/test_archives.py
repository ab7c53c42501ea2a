import stat
import tarfile
import zipfile

import formats
import pytest

from snapens.errors import DataError
from snapens.lab.data.archives import unpack

trusted = formats.trusted
GOOD = ("set/a.bin", tarfile.REGTYPE, b"good")


def test_a_folder_is_unpacked_next_to_its_archive(tmp_path, trusted):
    deep = ("set/b/c.txt", tarfile.REGTYPE, b"deep")
    folder = unpack(trusted(formats.tar(tmp_path / "a.tar.gz", ("set", tarfile.DIRTYPE, b""), GOOD, deep)), "set")
    assert folder == tmp_path / "set"
    assert (folder / "a.bin").read_bytes() == b"good"
    assert (folder / "b/c.txt").read_bytes() == b"deep"
    unpacked = unpack(trusted(formats.zipped(tmp_path / "a.zip", ("other/", ""), ("other/a", "good"))), "other")
    assert (unpacked / "a").read_text() == "good"


@pytest.mark.parametrize(
    "member",
    [
        ("set/../../evil", tarfile.REGTYPE, b"evil"),
        ("../evil", tarfile.REGTYPE, b"evil"),
        ("/tmp/evil", tarfile.REGTYPE, b"evil"),
        ("other/evil", tarfile.REGTYPE, b"evil"),
        ("set/..\\evil", tarfile.REGTYPE, b"evil"),
        ("set/link", tarfile.SYMTYPE, b"/etc/passwd"),
        ("set/link", tarfile.LNKTYPE, b"../evil"),
        ("set/device", tarfile.CHRTYPE, b""),
        ("set/pipe", tarfile.FIFOTYPE, b""),
    ],
)
def test_a_tar_with_anything_except_regular_files_in_its_folder_is_rejected(tmp_path, trusted, member):
    archive = trusted(formats.tar(tmp_path / "a.tar.gz", GOOD, member))
    with pytest.raises(DataError, match=r"must hold regular files in one folder, got .*: do not use"):
        unpack(archive, "set")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def link():
    entry = zipfile.ZipInfo("set/link")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize("name", ["set/../../evil", "../evil", "/evil", "set/C:evil", link()])
def test_a_zip_with_anything_except_regular_files_in_its_folder_is_rejected(tmp_path, trusted, name):
    archive = trusted(formats.zipped(tmp_path / "a.zip", ("set/a.bin", "good"), (name, "/etc/passwd")))
    with pytest.raises(DataError, match="must hold regular files in one folder"):
        unpack(archive, "set")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_a_file_that_is_not_an_archive_is_rejected(tmp_path, trusted, name):
    (tmp_path / name).write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="must be a complete archive, got"):
        unpack(trusted(tmp_path / name), "set")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip"])
def test_an_empty_archive_is_rejected(tmp_path, trusted, name):
    archive = trusted((formats.tar if name == "a.tar.gz" else formats.zipped)(tmp_path / name))
    with pytest.raises(DataError, match="must hold regular files in one folder, got 'no files'"):
        unpack(archive, "set")


def test_nothing_of_an_incomplete_tar_is_unpacked(tmp_path, trusted):
    archive = formats.tar(tmp_path / "a.tar.gz", GOOD, ("set/b", tarfile.REGTYPE, formats.noise(9).tobytes()))
    archive.write_bytes(archive.read_bytes()[:9000])
    with pytest.raises(DataError, match="must be a complete archive, got"):
        unpack(trusted(archive), "set")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]
