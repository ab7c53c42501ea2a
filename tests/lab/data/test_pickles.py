import os
import pickle
import subprocess
import sys

import formats
import numpy as np
import pytest

from snapens.errors import DataError
from snapens.lab.data import pickles


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def read(tmp_path, content):
    path = tmp_path / "batch"
    path.write_bytes(content)
    return pickles.read(path)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("keys", [lambda key: key, str.encode])
def test_arrays_pickled_by_python_3_are_read(tmp_path, keys, order):
    planes = np.asarray(formats.planes(formats.noise(3)), order=order)
    content = read(tmp_path, pickle.dumps({keys("data"): planes, keys("labels"): [1, 2, 3]}, protocol=2))
    np.testing.assert_array_equal(content["data"], planes)
    assert content["labels"] == [1, 2, 3]


def test_arrays_pickled_by_python_2_are_read(tmp_path):
    planes = np.asfortranarray(formats.planes(formats.noise(3)))
    content = read(tmp_path, formats.pickled_by_python_2({"data": planes, "names": ["ä"]}))
    np.testing.assert_array_equal(content["data"], planes)
    assert content["names"] == ["ä".encode("latin-1")]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("function", [os.system, eval, getattr, np.load, np.frombuffer])
def test_a_pickle_that_refers_to_other_code_is_rejected_and_not_run(tmp_path, function, protocol):
    trace = tmp_path / "trace"
    hostile = {
        os.system: (f"touch {trace}",),
        eval: (f"open({str(trace)!r}, 'w')",),
        getattr: ("", "join"),
    }.get(function, (str(trace),))
    with pytest.raises(DataError, match="which is not allowed: download it again"):
        read(tmp_path, pickle.dumps({"data": Hostile(function, *hostile)}, protocol))
    assert not trace.exists()


SMALL = {
    "a string of 2 GB": b"\x80\x02T\xff\xff\xff\x7f.",
    "an entry of the memo at 4 GB": b"\x80\x02Nr\xff\xff\xff\x0f.",
    "bytes of 1 TB": b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b".",
    "a bytearray of 1 TB": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "a key of nested tuples": b"\x80\x02}K\x07" + b"\x85" * 1_000_000 + b"K\x01s.",
}


@pytest.mark.parametrize("content", SMALL.values(), ids=SMALL)
def test_a_small_pickle_cannot_allocate_much_memory_or_overflow_the_stack(tmp_path, content):
    code = """
import resource, sys
from pathlib import Path
from snapens.errors import DataError
from snapens.lab.data import pickles
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    pickles.read(Path(sys.argv[1]))
except DataError as error:
    assert "MemoryError" not in str(error), error
    sys.exit(7)
"""
    path = tmp_path / "batch"
    path.write_bytes(content)
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 7


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"not a pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({1: 2}, 2)[:-3],
        pickle.dumps({b"\xff": 1}),
        formats.pickled_by_python_2({"data": np.zeros(3, np.float32)}),
        pickle.dumps({"data": np.array([None, "x"])}, 2),
        formats.pickled_by_python_2({"data": np.zeros((2, 2), np.uint8)}).replace(
            b"\4\0\0\0\0\0\0\0", b"\3\0\0\0\0\0\0"
        ),
    ],
)
def test_a_pickle_that_is_damaged_or_not_plain_is_rejected(tmp_path, content):
    with pytest.raises(
        DataError, match=r"batch must be a pickled dictionary of plain values and uint8 arrays, got \w+"
    ):
        read(tmp_path, content)
