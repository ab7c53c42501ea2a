"""A run stopped anywhere and resumed is the run that was not stopped, bit for bit."""

import random
import re
import shutil
from pathlib import Path

import pytest
import torch
from states import equal

from snapens import CyclicCosine, SnapshotEnsembler, Snapshots

SCHEDULE = CyclicCosine(40, 4, warmup_steps=4)


class Run:
    """What a user's script holds: model, optimizer, random state, ensembler, and a checkpoint of all four."""

    def __init__(self, make_net, store):
        torch.manual_seed(0)
        self.net = make_net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.05)
        self.ensembler = SnapshotEnsembler(self.net, self.optimizer, SCHEDULE, store=store, resume=True)

    def train(self, until):
        while self.ensembler.completed < until:
            self.net(torch.randn(6, 4)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.ensembler.step()
        return self

    def save(self, path):
        parts = {"net": self.net, "optimizer": self.optimizer, "ensembler": self.ensembler}
        torch.save({"random": torch.get_rng_state(), **{k: part.state_dict() for k, part in parts.items()}}, path)

    def load(self, path):
        state = torch.load(path, weights_only=True)
        torch.set_rng_state(state["random"])
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.ensembler.load_state_dict(state["ensembler"])
        return self

    def close(self):
        self.ensembler.snapshots.close()


def around_minima():
    """Checkpoints at the start and just before, at and after a minimum, and kills after none to all later minima."""
    return [(saved, killed) for saved in (0, 12, 13, 14, 31) for killed in (saved, 13, 22, 40) if killed >= saved]


def anywhere():
    rng = random.Random(0)
    saved = [rng.randint(0, 39) for _ in range(200)]
    return [(step, rng.randint(step, 40)) for step in saved]


@pytest.mark.parametrize("stops", [around_minima, pytest.param(anywhere, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_stop_loses_and_doubles_nothing(make_net, tmp_path, kind, stops):
    """A run continues after its checkpoint, commits perhaps, and is lost; another process resumes the checkpoint."""
    assert SCHEDULE.snapshot_steps == (13, 22, 31, 40)
    whole = Run(make_net, tmp_path / "whole").train(40)
    expected = {step: whole.ensembler.snapshots.load(step) for step in SCHEDULE.snapshot_steps}
    for saved_at, killed_at in stops():
        path = tmp_path / "run" if kind == "folder" else None
        first = Run(make_net, path).train(saved_at)
        first.save(tmp_path / "checkpoint.pt")
        first.train(killed_at).close()
        resumed = Run(make_net, path).load(tmp_path / "checkpoint.pt").train(40)
        assert equal(resumed.net.state_dict(), whole.net.state_dict())
        store = Snapshots(path) if path else resumed.ensembler.snapshots
        assert store.steps == SCHEDULE.snapshot_steps
        assert all(equal(store.load(step), expected[step]) for step in store.steps)
        if path:
            assert len(list((path / "snapshots").iterdir())) == 4
            resumed.close()
            shutil.rmtree(path)


def test_the_program_of_the_page_continues_where_it_was_stopped(tmp_path, monkeypatch):
    page = (Path(__file__).parent.parent / "docs/how-to/resume.md").read_text()
    program = re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)[1]
    condition = "ensembler.completed < schedule.total_steps"
    assert condition in program
    found = []
    for name, stops in (("whole", (300,)), ("stopped", (120, 230, 300))):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        for stop in stops:
            names = {}
            exec(program.replace(condition, f"ensembler.completed < {stop}"), names)
            names["ensembler"].close()
        found.append(names["ensemble"])
    assert found[0].steps == found[1].steps == (100, 200, 300)
    pairs = zip(found[0].members, found[1].members, strict=True)
    assert all(equal(one.state_dict(), two.state_dict()) for one, two in pairs)
