"""Run folders for the tests of records."""

import tiny
import torch

from snapens import Snapshots
from snapens.lab.records.run import Run, State

DATA = tiny.data().described()


def begun(path, recipe=tiny.RECIPE):
    path.mkdir(exist_ok=True)
    run = Run(path)
    run.begin(recipe, DATA)
    return run


def failing(error):
    def fail(*_):
        raise error

    return fail


def state(completed):
    tensors = {"weight": torch.full((100,), float(completed)), "completed": torch.tensor([completed])}
    return State(completed, tensors, {"seconds": completed / 3, "ensembler": {"completed": completed}})


def assert_state(found, completed):
    wanted = state(completed)
    assert found is not None
    assert found.completed == completed
    assert found.notes == wanted.notes
    assert tiny.equal(found.tensors, wanted.tensors)


def member(seed, examples=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(examples, 4, generator=generator).log_softmax(1).half()


LABELS = torch.tensor([0, 1, 2, 3, 0, 1])


def kept(path, *steps):
    """A store with snapshots of these steps."""
    store = Snapshots(path)
    store.open_to_write(resume=True)
    store.rewind(0)
    for step in steps:
        store.commit(step, {"weight": torch.full((2,), float(step))})
    store.close()


def flipped(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
