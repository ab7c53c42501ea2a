"""Every bit of every small file: a change is detected, or it changes nothing that anybody reads."""

import logging
import math
from contextlib import suppress

import pytest
from scenarios import finished, look, sampled

from snapens.combination import Combination
from snapens.errors import SnapensError
from snapens.lab.records import gallery
from snapens.lab.records.run import Run
from snapens.outputs import Outputs


def snapshots(path):
    return Run(path).snapshots.steps


def state(path):
    found = Run(path).state()
    return found.completed, found.notes["ensembler"]


def images(path):
    return gallery.read(Run(path)).indices.tolist()


def outputs(part):
    return lambda path: Outputs.load(path, part).log_probabilities.tobytes()


READERS = {
    "manifest.json": snapshots,
    "manifest.previous.json": snapshots,
    "recipe.json": lambda path: (Run(path).recipe, Run(path).data),
    "log.jsonl": lambda path: list(Run(path).log()),
    "curves.json": lambda path: Run(path).curves(),
    "gallery.json": images,
    "combination.json": Combination.load,
    "state/state.json": state,
    "state/state.previous.json": state,
    "outputs/test.json": outputs("test"),
    "outputs/held_out.json": outputs("held_out"),
}
"""Each JSON file of a run folder, and what reads it. `test_every_json_file_has_a_reader` keeps the list complete."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("bits") / "run"
    finished(path)
    logging.getLogger("snapens").setLevel(logging.ERROR)  # a damaged state is reported for each bit
    yield path
    logging.getLogger("snapens").setLevel(logging.NOTSET)


def flips(content, count):
    """The content with one bit changed, for some or all of its bits."""
    for bit in sampled(range(8 * len(content)), count):
        altered = bytearray(content)
        altered[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(altered)


def undetected(path, read, allowed, count):
    """The bits whose change gives something else than what is allowed."""
    content, found = path.read_bytes(), []
    print(min(count or math.inf, 8 * len(content)), "bits:", path.name)
    for bit, altered in flips(content, count):
        path.write_bytes(altered)
        try:
            if read() not in allowed:
                found.append(bit)
        except SnapensError:
            pass
    path.write_bytes(content)
    return found


def without(path, read):
    """What is read while a file is damaged; a damaged state is replaced by the one before."""
    content = path.read_bytes()
    path.write_bytes(b"")
    found = read()
    path.write_bytes(content)
    return found


def test_every_json_file_has_a_reader(run):
    assert {str(path.relative_to(run)) for path in run.rglob("*.json*")} == set(READERS)


@pytest.mark.parametrize("count", [200, pytest.param(None, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", READERS)
def test_a_flipped_bit_is_detected_or_harmless(run, name, count):
    read, path = READERS[name], run / name
    allowed = [read(run)]
    if name == "state/state.json":
        allowed.append(without(path, lambda: read(run)))
    assert undetected(path, lambda: read(run), allowed, count) == []


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.long)])
def test_a_flipped_bit_of_a_tensor_file_is_detected(run, count):
    files = sorted(run.rglob("*.safetensors"))
    assert len(files) == 2 + 2 * 3 + 2 + 1  # snapshots, outputs of two parts with labels, states, gallery
    allowed = [look(run), without(run / "state/state.json", lambda: look(run))]
    for path in files:
        assert undetected(path, lambda: look(run), allowed, count) == [], path.name


def test_a_cut_off_file_is_detected_or_harmless(run):
    """Only the log may end anywhere: a last line that was cut off is left out."""
    for name, read in READERS.items():
        path = run / name
        content, allowed = path.read_bytes(), [read(run)]
        if name == "state/state.json":
            allowed.append(without(path, lambda: read(run)))  # noqa: B023
        lines = allowed[0] if name == "log.jsonl" else []
        allowed += [lines[:k] for k in range(len(lines))]
        for size in sampled(range(len(content)), 100):
            path.write_bytes(content[:size])
            with suppress(SnapensError):
                assert read(run) in allowed, (name, size)
        path.write_bytes(content)
