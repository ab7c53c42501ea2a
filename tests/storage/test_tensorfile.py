import json
import random
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from snapens.errors import ArgumentError, DamagedError, StoreError
from snapens.storage import tensorfile

DTYPES = list(tensorfile._CODES)


def every_dtype() -> dict[str, torch.Tensor]:
    made = {str(dtype): torch.randint(0, 2, (3, 5)).to(dtype) for dtype in DTYPES}
    return made | {"scalar": torch.tensor(7.0), "empty": torch.empty(0, 4), 'naïve "name"': torch.ones(1)}


ABOUT = tensorfile.About("a" * 32, "state", 4)


def write(path, tensors):
    tensorfile.save(path, tensors, ABOUT)
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
    read = {name: entry.read() for name, entry in tensorfile.header(tmp_path / "a")[0].items()}
    assert read.keys() == tensors.keys()
    assert all(same(read[name], tensors[name]) for name in tensors)


def test_every_tensor_is_aligned_for_readers_that_map_the_file(tmp_path):
    found = tensorfile.header(write(tmp_path / "a", every_dtype()))[0]
    assert all(entry.offset % entry.dtype.itemsize == 0 for entry in found.values())


def test_an_empty_file_of_tensors_is_a_file(tmp_path):
    assert tensorfile.header(write(tmp_path / "a", {}))[0] == {}


def test_holds_compares_every_byte(tmp_path):
    tensor = torch.zeros(3_000_000)
    stored = tensorfile.header(write(tmp_path / "a", {"t": tensor}))[0]["t"]
    assert stored.holds(tensor)
    for position in (0, 1023, 1024, 2_999_999):
        changed = tensor.clone()
        changed[position] = -0.0
        assert not stored.holds(changed)
    assert not stored.holds(tensor.double())
    assert not stored.holds(tensor[:-1])


def test_a_dtype_that_the_format_lacks_is_rejected(tmp_path):
    with pytest.raises(ArgumentError, match="complex128 for 't'"):
        write(tmp_path / "a", {"t": torch.zeros(1, dtype=torch.complex128)})
    assert list(tmp_path.iterdir()) == []


def header(**offsets):
    """A header of float32 vectors, each with its first and last byte."""
    described = {
        name: {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}
        for name, (begin, end) in offsets.items()
    }
    return json.dumps(described).encode()


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
        b'{"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "t": 1}',
        b'{"t": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}}',
        b'{"t": {"dtype": "F32", "shape": [2], "data_offsets": [0.0, 8.0]}}',
        b'{"t": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}',
        header(t=(0, 8), u=(0, 8)),
        header(t=(0, 8), u=(4, 8)),
        header(t=(0, 4)),  # four bytes that no tensor describes
        header(t=(4, 8)),
        b'{"__metadata__": 3, "t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"__metadata__": {"format": "two"}, "t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"__metadata__": {"elsewhere": "[]"}, "t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"__metadata__": {"elsewhere": "{1}"}, "t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"t": ' + b"[" * 100_000,
    ],
)
def test_a_hand_made_header_is_rejected(tmp_path, header):
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(DamagedError, match="restore the file"):
        tensorfile.header(tmp_path / "a")[0]


def test_eight_thousand_names_for_one_tensor_are_rejected(tmp_path):
    text = header(**{f"t{k}": (0, 8) for k in range(8000)})
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 8)
    with pytest.raises(DamagedError, match="overlaps another tensor"):
        tensorfile.header(tmp_path / "a")[0]


def test_too_many_names_are_rejected(tmp_path):
    text = header(**{f"t{k}": (0, 0) for k in range(100_001)})
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(DamagedError, match="more than 100000 tensors"):
        tensorfile.header(tmp_path / "a")[0]


def test_a_file_says_what_it_belongs_to_and_a_reader_compares_it(tmp_path):
    path = write(tmp_path / "a", {"t": torch.ones(2)})
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "2", "run": "a" * 32, "kind": "state", "step": "4"}
    assert tensorfile.header(path, ABOUT)[0].keys() == {"t"}
    for change in ({"run": "b" * 32}, {"kind": "snapshot"}, {"step": 5}, {"step": None}):
        with pytest.raises(DamagedError, match=r"a must be of About\(.*, got About"):
            tensorfile.header(path, replace(ABOUT, **change))[0]


def test_a_file_of_a_newer_format_is_rejected_by_name(tmp_path):
    safetensors.torch.save_file({"t": torch.ones(2)}, tmp_path / "a", metadata={"format": "3"})
    with pytest.raises(StoreError, match="must have format 2 or older, got 3: install a newer snapens"):
        tensorfile.header(tmp_path / "a")[0]


def test_tensors_are_written_one_at_a_time_and_those_that_lie_elsewhere_are_named(tmp_path):
    specs = {name: tensorfile.Spec(torch.float32, (3,)) for name in ("own", 'stored "é"', "last")}
    alive = []

    def items():
        for name in specs:
            alive.append(name)
            yield name, ("file.safetensors", "key") if "stored" in name else torch.full((3,), float(len(alive)))

    tensorfile.stream(tmp_path / "a", specs, items(), ABOUT, [('stored "é"', ("file.safetensors", "key"))])
    own, elsewhere = tensorfile.header(tmp_path / "a", ABOUT)
    assert {name: entry.read().tolist() for name, entry in own.items()} == {"own": [1.0] * 3, "last": [3.0] * 3}
    assert elsewhere == {'stored "é"': ("file.safetensors", "key")}
    assert safetensors.torch.load_file(tmp_path / "a").keys() == {"own", "last"}


@pytest.mark.parametrize("stored", [0, 1, 50])
def test_the_header_has_room_whatever_is_stored_elsewhere(tmp_path, stored):
    specs = {f'layer "{k}"\\é': tensorfile.Spec(torch.float32, (k,)) for k in range(50)}
    place = ("step-000000004-0123456789ab.safetensors", 'layer "49"\\é')
    items = [
        (name, place if k < stored else torch.full(spec.shape, 1.0)) for k, (name, spec) in enumerate(specs.items())
    ]
    tensorfile.stream(tmp_path / "a", specs, items, ABOUT, [(name, place) for name in list(specs)[:stored]])
    own, elsewhere = tensorfile.header(tmp_path / "a")
    assert list(own) == list(specs)[stored:]
    assert all(entry.read().eq(1).all() for entry in own.values())
    assert elsewhere == dict.fromkeys(list(specs)[:stored], place)


def test_a_place_that_was_not_announced_is_rejected_before_the_file_is_published(tmp_path):
    specs = {"t": tensorfile.Spec(torch.float32, (1,))}
    with pytest.raises(ArgumentError, match="places must contain the place of each item"):
        tensorfile.stream(tmp_path / "a", specs, [("t", ("file" * 100, "key"))], ABOUT, [("t", ("file", "key"))])
    assert not list(tmp_path.iterdir())


def test_a_huge_header_is_not_read(tmp_path):
    (tmp_path / "a").write_bytes(b"\xff" * 64)
    with pytest.raises(DamagedError):
        tensorfile.header(tmp_path / "a")[0]


def test_a_file_that_is_truncated_after_its_header_was_read_is_rejected(tmp_path):
    path = write(tmp_path / "a", {"t": torch.ones(10)})
    stored = tensorfile.header(path)[0]["t"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="truncated"):
        stored.read()
    path.unlink()
    with pytest.raises(DamagedError, match="cannot be opened"):
        stored.read()


@pytest.mark.long
def test_twenty_thousand_mutilated_files_give_our_error_or_tensors(tmp_path):
    whole = write(tmp_path / "a", {"t": torch.ones(3, 2), "u": torch.zeros(4, dtype=torch.int64)}).read_bytes()
    rng, rejected = random.Random(0), 0
    for _ in range(20_000):
        bad = bytearray(whole[: rng.randint(0, len(whole))] if rng.random() < 0.3 else whole)
        for _ in range(rng.randint(1, 4)):
            if bad:
                bad[rng.randrange(len(bad))] = rng.randrange(256)
        (tmp_path / "a").write_bytes(bad)
        try:
            for entry in tensorfile.header(tmp_path / "a")[0].values():
                entry.read()
        except DamagedError:
            rejected += 1
    assert rejected > 5000
