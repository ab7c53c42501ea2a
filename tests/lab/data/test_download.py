import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import formats
import numpy as np
import pytest

from snapens.errors import DataError, MissingDataError, SnapensError
from snapens.lab.data import load
from snapens.lab.data.download import fetch
from snapens.lab.data.sources import SOURCES, Source

CONTENT = formats.noise(300).tobytes()
NAME = "train_32x32.mat"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, content = self.server, self.server.files.get(self.path.strip("/"))
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        server.starts.append(start)
        if content is None or start >= len(content):
            self.send_error(404 if content is None else 416)
            return
        ranged = server.ranges and "Range" in self.headers
        body = content[start:] if ranged else content
        self.send_response(206 if ranged else 200)
        if server.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.drops.pop(0) if server.drops else None])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """Serves `files`, with or without ranges; `drops` are the numbers of bytes after which connections are dropped."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    server.files, server.ranges, server.lengths, server.drops, server.starts = {}, True, True, [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def offer(name, content, right=None):
        server.files[name] = content
        url = f"http://127.0.0.1:{server.server_port}/{name}"
        monkeypatch.setitem(SOURCES, name, Source(url, hashlib.md5(right or content).hexdigest()))

    server.offer = offer
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_is_downloaded_completely_and_progress_is_reported(tmp_path, server):
    server.offer(NAME, CONTENT)
    reported = []
    path = fetch(NAME, tmp_path / "new/folder", lambda done, total: reported.append((done, total)))
    assert path == tmp_path / "new/folder" / NAME
    assert path.read_bytes() == CONTENT
    assert [path.name for path in path.parent.iterdir()] == [NAME]
    assert reported[-1] == (len(CONTENT), len(CONTENT))
    assert reported == sorted(reported)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_continues_where_the_connection_was_dropped(tmp_path, server, ranges):
    server.offer(NAME, CONTENT)
    server.ranges, server.drops = ranges, [400_000]
    assert fetch(NAME, tmp_path).read_bytes() == CONTENT
    assert server.starts == [0, 400_000]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_partial_file_is_continued(tmp_path, server, ranges):
    server.offer(NAME, CONTENT)
    server.ranges = ranges
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:1000])
    assert fetch(NAME, tmp_path).read_bytes() == CONTENT
    assert server.starts == [1000]


def test_a_partial_file_that_is_complete_is_accepted(tmp_path, server):
    server.offer(NAME, CONTENT)
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)
    assert fetch(NAME, tmp_path).read_bytes() == CONTENT


def test_a_server_that_sends_nothing_more_is_an_error_and_the_partial_file_remains(tmp_path, server):
    server.offer(NAME, CONTENT)
    server.drops = [300_000, 0]
    with pytest.raises(
        DataError, match=rf"{NAME} must be downloaded from http.*: try again, .* 300000 bytes .* copy the file to"
    ):
        fetch(NAME, tmp_path)
    assert (tmp_path / f"{NAME}.part").read_bytes() == CONTENT[:300_000]
    assert fetch(NAME, tmp_path).read_bytes() == CONTENT


def test_a_server_without_ranges_that_always_drops_the_connection_is_an_error(tmp_path, server):
    server.offer(NAME, CONTENT)
    server.ranges, server.drops = False, [300_000] * 5
    with pytest.raises(DataError, match="the connection ended early"):
        fetch(NAME, tmp_path)


def test_without_a_length_from_the_server_the_md5_decides(tmp_path, server):
    server.offer(NAME, CONTENT)
    server.lengths = False
    reported = []
    assert fetch(NAME, tmp_path, lambda done, total: reported.append(total)).read_bytes() == CONTENT
    assert {*reported} == {0}


def test_a_link_in_place_of_the_partial_file_is_not_written_through(tmp_path, server):
    server.offer(NAME, CONTENT)
    (tmp_path / "outside").write_bytes(b"mine")
    (tmp_path / f"{NAME}.part").symlink_to(tmp_path / "outside")
    with pytest.raises(SnapensError, match=r"\.part must be a regular file, got a symbolic link: remove the link"):
        fetch(NAME, tmp_path)
    assert (tmp_path / "outside").read_bytes() == b"mine"


@pytest.mark.parametrize("start", [b"", b"rubbish", CONTENT + b"too long"])
def test_other_content_is_rejected_and_removed(tmp_path, server, start):
    server.offer(NAME, b"<html>sorry</html>" if not start else CONTENT, right=CONTENT)
    if start:
        (tmp_path / f"{NAME}.part").write_bytes(start)
    with pytest.raises(DataError, match=r"must have the MD5 .*, got .*: remove it and download it again from http"):
        fetch(NAME, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_missing_network_or_file_is_an_error_with_a_remedy(tmp_path, server, monkeypatch):
    server.offer(NAME, CONTENT)
    del server.files[NAME]
    with pytest.raises(DataError, match="HTTP Error 404"):
        fetch(NAME, tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(SOURCES, NAME, Source("http://127.0.0.1:9/a", "0"))
    with pytest.raises(DataError) as caught:
        fetch(NAME, tmp_path)
    for part in ("http://127.0.0.1:9/a", "refused", str(tmp_path / NAME)):
        assert part in str(caught.value)


def served(server, root, name):
    return server.offer(name, Path(root, name).read_bytes())


def test_load_downloads_missing_files_into_the_folder_or_the_cache(tmp_path, server, monkeypatch):
    pixels = formats.noise(10)
    folder = formats.cifar100(tmp_path / "origin", pixels, np.arange(10), pixels, np.arange(10))
    formats.tar(tmp_path / "origin/cifar-100-binary.tar.gz", of=folder)
    served(server, tmp_path / "origin", "cifar-100-binary.tar.gz")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for root in (tmp_path / "mine", None):
        with pytest.raises(DataError, match="data must be a folder that holds"):
            load("cifar100", root)
        np.testing.assert_array_equal(load("cifar100", root, download=True).train.pixels, pixels)
        np.testing.assert_array_equal(load("cifar100", root).train.pixels, pixels)
    assert (tmp_path / "cache/snapens/cifar-100-binary/train.bin").exists()
    assert len(server.starts) == 2
    load("cifar100", tmp_path / "mine", download=True)
    assert len(server.starts) == 2


def test_data_without_a_public_source_are_missing_with_and_without_a_download(tmp_path):
    for download in (False, True):
        with pytest.raises(MissingDataError, match=r"data must be a folder that holds train/WNID/\*\.JPEG"):
            load("imagenet", tmp_path, download=download)


def test_a_folder_that_cannot_be_created_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        DataError, match=r"cifar10 must be readable in .*file, got .*: check the files and their permissions"
    ):
        load("cifar10", tmp_path / "file", download=True)


def test_load_downloads_only_the_files_that_are_missing(tmp_path, server):
    for name in ("train_32x32.mat", "test_32x32.mat", "extra_32x32.mat"):
        formats.svhn(tmp_path / name, formats.noise(20), np.arange(20) % 10)
        served(server, tmp_path, name)
    (tmp_path / "svhn").mkdir()
    (tmp_path / "train_32x32.mat").rename(tmp_path / "svhn/train_32x32.mat")
    (tmp_path / "test_32x32.mat").unlink()
    reported = []
    load("svhn", tmp_path, download=True, progress=lambda *bytes_: reported.append(bytes_))
    assert len(server.starts) == 1
    assert reported[-1][0] == (tmp_path / "test_32x32.mat").stat().st_size
