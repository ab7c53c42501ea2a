"""Hostile folders: whatever stands in place of a file, readers end with an error of ours, and writers stay inside."""

import json
import os
import shutil
from contextlib import nullcontext, suppress
from unittest.mock import patch

import pytest
from disk import Disk
from scenarios import finished, look, predict, sampled, trained
from test_bits import READERS

from snapens.combination import Combination
from snapens.errors import SnapensError
from snapens.lab.records.run import Run
from snapens.storage import durable, sealed

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX files")


def sparse(path):
    with open(path, "wb") as file:
        file.truncate(8 << 30)


def resealed(path, text):
    """A file with a valid checksum whose content was made by hand; the log has no seal."""
    if path.suffix != ".json":
        return path.write_bytes(text)
    content = json.loads(path.read_bytes())
    fields = {name: content[name] for name in content if name not in ("format", "kind", "run", "sha256")}
    first = next(iter(fields))
    body = sealed.encode(content["kind"], content["run"], {**fields, first: sealed.jsonfile.Encoded(text.decode())})
    return path.write_bytes(body)


HOSTILE = {
    "a FIFO": os.mkfifo if hasattr(os, "mkfifo") else None,
    "a folder": lambda path: path.mkdir(),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a sparse file of 8 GB": sparse,
    "nothing in it": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "no text": lambda path: path.write_bytes(b"\xff\xfe" * 100),
    "deep JSON": lambda path: path.write_bytes(b"[" * 200_000),
    "a deep object": lambda path: path.write_bytes(b'{"a":' * 200_000),
    "a huge number": lambda path: path.write_bytes(b'{"format": 1' + b"0" * 5000 + b"}"),
    "an infinite number": lambda path: path.write_bytes(b'{"format": 1e999}'),
    "another kind of JSON": lambda path: path.write_bytes(b"[2]"),
    "a pickle": lambda path: path.write_bytes(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00K\x01."),
}
SEALED = {"null": b"null", "deep": b"[" * 500 + b"]" * 500, "huge": b"9" * 4000, "negative": b"-1", "text": b'"x"'}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "run"
    finished(path)
    return path


@pytest.fixture
def run(template, tmp_path):
    return shutil.copytree(template, tmp_path / "run")


def read_all(run, name, readers=(look, predict)):
    """The file's own reader and those of everything: each ends, with an error of ours or without."""
    for read in (READERS.get(name, look), *readers):
        with suppress(SnapensError):
            read(run)


@pytest.mark.parametrize("readers", [(look,), pytest.param((look, predict, trained), marks=pytest.mark.long)])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_file_in_place_of_any_other_is_rejected(run, template, hostile, readers):
    names = [str(path.relative_to(run)) for path in sorted(run.rglob("*")) if path.is_file()]
    assert len(names) > 20
    for name in names:
        (run / name).unlink()
        HOSTILE[hostile](run / name)
        if name in READERS and "previous" not in name and name != "state/state.json":
            cut = name == "log.jsonl" and hostile in ("nothing in it", "a deep object")  # as a kill left it in format 1
            with nullcontext() if cut else pytest.raises(SnapensError):
                READERS[name](run)
        read_all(run, name, readers)
        shutil.rmtree(run)
        shutil.copytree(template, run)


@pytest.mark.parametrize("value", SEALED)
def test_a_hand_made_file_with_a_valid_checksum_gives_an_error_of_ours_or_is_read(run, template, value):
    for name in READERS:
        if name != "log.jsonl":
            try:
                resealed(run / name, SEALED[value])
            except ValueError:
                continue  # it cannot be encoded
            read_all(run, name)
            shutil.rmtree(run)
            shutil.copytree(template, run)


# planted links


def work(path):
    """Write every kind of file that there is into a folder."""
    finished(path)
    Combination.last(1).save(path)
    durable.write(path / "report.html", b"<p>")


class Numbers:
    """Predictable names, as an attacker could wish for."""

    def __init__(self):
        self._next = 0

    def __call__(self):
        self._next += 1
        return f"{self._next:012x}"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Every name that is created, written or renamed to, and the folders."""
    path = tmp_path_factory.mktemp("written") / "run"
    with patch.object(durable, "unique", Numbers()), Disk(path) as disk:
        work(path)
    creating = {"create": "path", "mkdir": "path", "replace": "to"}
    names = {getattr(one, creating[one.name]): one.name for one in disk.operations if one.name in creating}
    return {name: kind for name, kind in names.items() if name != "."}


def plant(path, kind, outside):
    """Put a link in place of a file or folder that will be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "hard":
        os.link(outside / "file", path)
    else:
        path.symlink_to({"file": outside / "file", "missing": outside / "missing", "folder": outside / "folder"}[kind])


@pytest.mark.parametrize("count", [8, pytest.param(None, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["file", "missing", "folder", "hard"])
def test_a_planted_link_never_leads_a_write_out_of_the_folder(tmp_path, written, kind, count):
    assert len(written) > 60
    names = sampled(written, count) + [name for name in written if "." not in name or "lock" in name or "log" in name]
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").write_bytes(b"precious")
    wrong = []
    for number, name in enumerate(names):
        run = tmp_path / f"{number}" / "run"
        plant(run / name, kind, outside)
        with patch.object(durable, "unique", Numbers()), suppress(SnapensError):
            work(run)
        if (outside / "file").read_bytes() != b"precious" or len(list(outside.rglob("*"))) != 2:
            wrong.append(name)
            (outside / "file").write_bytes(b"precious")
    assert not wrong


def test_a_run_folder_may_itself_be_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to("elsewhere")
    trained(tmp_path / "run")
    assert Run(tmp_path / "elsewhere").finished
