import random

import pytest
import safetensors.torch
import torch

from snapens.errors import ArgumentError, DamagedError
from snapens.storage import durable, tensorfile

DTYPES = list(tensorfile._CODES)


def every_dtype() -> dict[str, torch.Tensor]:
    made = {str(dtype): torch.randint(0, 2, (3, 5)).to(dtype) for dtype in DTYPES}
    return made | {"scalar": torch.tensor(7.0), "empty": torch.empty(0, 4), 'naïve "name"': torch.ones(1)}


def write(path, tensors):
    durable.publish(path, tensorfile.encode(tensors))
    return path


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.reshape(-1).view(torch.uint8).equal(b.reshape(-1).view(torch.uint8))
    )


def test_the_safetensors_package_reads_what_is_written(tmp_path):
    tensors = every_dtype()
    read = safetensors.torch.load_file(write(tmp_path / "a", tensors))
    assert read.keys() == tensors.keys()
    assert all(same(read[name], tensors[name]) for name in tensors)


def test_what_the_safetensors_package_writes_is_read(tmp_path):
    tensors = every_dtype()
    safetensors.torch.save_file(tensors, tmp_path / "a", metadata={"by": "another"})
    read = {name: entry.read() for name, entry in tensorfile.entries(tmp_path / "a").items()}
    assert read.keys() == tensors.keys()
    assert all(same(read[name], tensors[name]) for name in tensors)


def test_every_tensor_is_aligned_for_readers_that_map_the_file(tmp_path):
    found = tensorfile.entries(write(tmp_path / "a", every_dtype()))
    assert all(entry.offset % entry.dtype.itemsize == 0 for entry in found.values())


def test_an_empty_file_of_tensors_is_a_file(tmp_path):
    assert tensorfile.entries(write(tmp_path / "a", {})) == {}


def test_holds_compares_every_byte(tmp_path):
    tensor = torch.zeros(3_000_000)
    stored = tensorfile.entries(write(tmp_path / "a", {"t": tensor}))["t"]
    assert stored.holds(tensor)
    for position in (0, 1023, 1024, 2_999_999):
        changed = tensor.clone()
        changed[position] = -0.0
        assert not stored.holds(changed)
    assert not stored.holds(tensor.double())
    assert not stored.holds(tensor[:-1])


def test_a_dtype_the_format_lacks_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="complex128 for 't'"):
        write(tmp_path / "a", {"t": torch.zeros(1, dtype=torch.complex128)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b'{"t": 1}',
        b'{"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}',
        b'{"t": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"t": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}',
        b'{"t": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}',
        b'{"t": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}}',
        b'{"t": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}',
        b'{"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "more": 1}}',
        b'{"t": ' + b"[" * 100_000,
    ],
)
def test_a_header_that_cannot_be_right_is_refused(tmp_path, header):
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(DamagedError, match="restore the file"):
        tensorfile.entries(tmp_path / "a")


def test_a_header_said_to_be_huge_is_not_read(tmp_path):
    (tmp_path / "a").write_bytes(b"\xff" * 64)
    with pytest.raises(DamagedError):
        tensorfile.entries(tmp_path / "a")


def test_a_file_cut_after_its_header_was_read_is_refused(tmp_path):
    path = write(tmp_path / "a", {"t": torch.ones(10)})
    stored = tensorfile.entries(path)["t"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="truncated"):
        stored.read()
    path.unlink()
    with pytest.raises(DamagedError, match="cannot be opened"):
        stored.read()


@pytest.mark.long
def test_twenty_thousand_mutilated_files_give_our_error_or_tensors(tmp_path):
    whole = write(tmp_path / "a", {"t": torch.ones(3, 2), "u": torch.zeros(4, dtype=torch.int64)}).read_bytes()
    rng, refused = random.Random(0), 0
    for _ in range(20_000):
        bad = bytearray(whole[: rng.randint(0, len(whole))] if rng.random() < 0.3 else whole)
        for _ in range(rng.randint(1, 4)):
            if bad:
                bad[rng.randrange(len(bad))] = rng.randrange(256)
        (tmp_path / "a").write_bytes(bad)
        try:
            for entry in tensorfile.entries(tmp_path / "a").values():
                entry.read()
        except DamagedError:
            refused += 1
    assert refused > 5000
