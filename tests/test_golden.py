"""Folders and ledger entries of every earlier format: they are read, and go on, for ever.

`golden/format1` was written by the code of 65ccdc6: a plain loop with a frozen and a tied tensor, its checkpoint in
mid-cycle, a finished run of the lab, one that was interrupted at step 28 of 40, and three ledger entries of single
runs with the joint number of two of them.
"""

import json
import shutil
from pathlib import Path

import tiny
import torch
from torch import nn

from snapens import CyclicCosine, Ensemble, SnapshotEnsembler
from snapens.lab.engine.pack import prepare, train
from snapens.lab.paper import ledger
from snapens.lab.records import gallery
from snapens.lab.records.run import Run

FORMAT_1 = Path(__file__).parent / "golden/format1"
EXPECTED = json.loads((FORMAT_1 / "expected.json").read_text())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(2, 3).requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.head.weight

    def forward(self, x):
        return self.tied(self.head(self.norm(self.frozen(x))))


def test_the_snapshots_of_a_loop_predict_what_they_predicted():
    expected = json.loads((FORMAT_1 / "loop.json").read_text())
    ensemble = Ensemble.load(FORMAT_1 / "loop", Net())
    assert list(ensemble.steps) == expected["steps"]
    found = ensemble(torch.tensor(expected["inputs"]))
    torch.testing.assert_close(found, torch.tensor(expected["probabilities"]))


def test_a_checkpoint_of_a_loop_goes_on_in_its_folder(tmp_path):
    shutil.copytree(FORMAT_1 / "loop", tmp_path / "loop")
    state = json.loads((FORMAT_1 / "loop-checkpoint.json").read_text())
    state["store"]["snapshots"] = {int(step): name for step, name in state["store"]["snapshots"].items()}
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(6, 3), store=tmp_path / "loop", resume=True)
    ensembler.load_state_dict(state)
    assert ensembler.completed == 3
    assert [ensembler.step() for _ in range(3)] == [4, None, 6]
    assert ensembler.ensemble().steps == (2, 4, 6)


def test_a_finished_run_says_what_it_said():
    run, expected = Run(FORMAT_1 / "finished"), EXPECTED["finished"]
    assert run.finished
    assert run.outputs().member_errors == expected["member_errors"]
    assert run.outputs().ensemble_errors == expected["ensemble_errors"]
    assert run.outputs("held_out").ensemble_errors == expected["held_out"]
    assert len(run.curves().lines) == 2
    assert gallery.read(run).pixels.shape == (20, 8, 8, 3)


def test_an_interrupted_run_goes_on_to_the_snapshots_that_it_would_have_had(tmp_path):
    shutil.copytree(FORMAT_1 / "interrupted", tmp_path / "run")
    run = Run(tmp_path / "run")
    (training,) = prepare([(run.recipe, run.path)], tiny.load, torch.device("cpu"), resume=True)
    assert training.completed == 28
    train([training])
    assert run.finished
    assert run.outputs().member_errors == EXPECTED["interrupted"]["member_errors"]


def test_the_ledgers_entries_say_what_they_said():
    found = ledger.entries(FORMAT_1 / "ledger")
    assert found["wrn32-cifar100-snapshot-0.2-seed0"].last_percent == (23.16, 21.79, 21.11, 20.9, 20.89)
    joint = found["densenet40-cifar100-single-x2-seeds0-1"]
    assert joint.runs == ("densenet40-cifar100-single-seed0", "densenet40-cifar100-single-seed1")
    assert joint.error_percent == 56.73
