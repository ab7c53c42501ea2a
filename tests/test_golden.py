"""Folders and ledger entries of every format: they are read, and can be resumed, for ever.

`golden/format1` was written by the code of 65ccdc6, `golden/format2` by the commit that added it: a plain loop with a
frozen and a tied tensor, its checkpoint in mid-cycle, a finished run of the lab, and one that was interrupted at step
28 of 40. Format 1 also has three ledger entries of single runs with the joint number of two of them.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import tiny
import torch
from torch import nn

from snapens import CyclicCosine, Ensemble, SnapshotEnsembler, Snapshots
from snapens.errors import DamagedError, StoreError
from snapens.lab.engine.pack import prepare, train
from snapens.lab.paper import ledger
from snapens.lab.records import format_1, gallery
from snapens.lab.records.run import Run
from snapens.outputs import Outputs
from snapens.storage import durable

FORMAT_1, FORMAT_2 = (Path(__file__).parent / "golden" / name for name in ("format1", "format2"))


@pytest.fixture(params=[FORMAT_1, FORMAT_2], ids=lambda path: path.name)
def golden(request):
    return request.param


@pytest.fixture
def expected(golden):
    return json.loads((golden / "expected.json").read_text())


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


def test_the_snapshots_of_a_loop_predict_what_they_predicted(golden):
    expected = json.loads((golden / "loop.json").read_text())
    ensemble = Ensemble.load(golden / "loop", Net())
    assert list(ensemble.steps) == expected["steps"]
    found = ensemble(torch.tensor(expected["inputs"]))
    torch.testing.assert_close(found, torch.tensor(expected["probabilities"]))


def test_a_checkpoint_of_a_loop_is_resumed_in_its_folder(tmp_path, golden):
    shutil.copytree(golden / "loop", tmp_path / "loop")
    state = json.loads((golden / "loop-checkpoint.json").read_text())
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(6, 3), store=tmp_path / "loop", resume=True)
    ensembler.load_state_dict(state)
    assert ensembler.completed == 3
    assert [ensembler.step() for _ in range(3)] == [4, None, 6]
    assert Ensemble.load(tmp_path / "loop", model).steps == (2, 4, 6)
    first = Snapshots(golden / "loop").load(2)  # its tied name survives the change of the format
    assert tiny.equal(Snapshots(tmp_path / "loop").load(2), first)
    assert json.loads((tmp_path / "loop/manifest.json").read_text())["format"] == 2


def test_a_finished_run_has_the_errors_it_had(golden, expected):
    run, expected = Run(golden / "finished"), expected["finished"]
    assert run.finished
    assert run.outputs().steps == run.snapshots.steps
    assert run.outputs().member_errors == expected["member_errors"]
    assert run.outputs().ensemble_errors == expected["ensemble_errors"]
    assert run.outputs("held_out").ensemble_errors == expected["held_out"]
    assert len(run.curves().lines) == 2
    assert gallery.read(run).pixels.shape == (20, 8, 8, 3)
    assert run.state().completed == 24


@pytest.mark.parametrize("name", ["finished", "interrupted"])
def test_the_ensemble_of_a_run_predicts_its_outputs_from_pixels(golden, name):
    run, pixels = Run(golden / name), tiny.data().test.pixels
    description = json.loads((golden / name / "recipe.json").read_text())["data"]
    expected = (pixels.astype(np.float32) - np.float32(description["mean"])) / np.float32(description["deviation"])
    assert np.array_equal(run.preprocessing(pixels).numpy(), expected.transpose(0, 3, 1, 2))
    found = run.ensemble(import_network=True)(torch.from_numpy(pixels)).numpy()
    assert np.abs(found - run.outputs().probabilities.mean(0)).max() < 2e-3  # outputs are float16


def test_an_interrupted_run_is_resumed_to_the_snapshots_that_it_would_have_had(tmp_path, golden, expected):
    shutil.copytree(golden / "interrupted", tmp_path / "run")
    run = Run(tmp_path / "run")
    (training,) = prepare([(run.recipe, run.path)], tiny.load, torch.device("cpu"), resume=True)
    assert training.completed == 28
    train([training])
    assert run.finished
    assert run.outputs().member_errors == expected["interrupted"]["member_errors"]
    for name in ("manifest.json", "state/state.json", "outputs/test.json"):
        assert json.loads((run.path / name).read_text())["format"] == 2
    assert (run.path / "log.jsonl").read_text().startswith('{"format": 2')


def test_altered_outputs_of_format_1_are_told_by_the_log_and_recomputed_by_a_resume(tmp_path, caplog):
    shutil.copytree(FORMAT_1 / "interrupted", tmp_path / "run")
    run, path = Run(tmp_path / "run"), tmp_path / "run/outputs.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DamagedError, match=r"outputs\.safetensors must have the SHA-256 in the log, but it was altered"
    ):
        run.outputs()
    prepare([(run.recipe, run.path)], tiny.load, torch.device("cpu"), resume=True)
    assert "they are recomputed" in caplog.text
    assert np.array_equal(run.outputs().log_probabilities, Run(FORMAT_1 / "interrupted").outputs().log_probabilities)


def test_the_parts_of_format_1_are_named_where_another_is_missing():
    with pytest.raises(StoreError, match="'other', only of held_out, test: choose held_out or test, or save them"):
        Outputs.load(FORMAT_1 / "finished", "other")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "test",
            torch.Tensor.float,
            r"outputs\.safetensors must hold float16 \(members, examples, classes\) of 'test'",
        ),
        ("test", lambda rows: rows[1:], r"outputs\.safetensors must hold float16 \(members, examples, classes\)"),
        ("test_labels", lambda labels: labels + 4, r"run must contain unaltered outputs, got labels must be .* 0 to 3"),
    ],
)
def test_outputs_of_format_1_with_other_shapes_or_labels_are_rejected(tmp_path, name, change, message):
    shutil.copytree(FORMAT_1 / "finished", tmp_path / "run")
    path = tmp_path / "run/outputs.safetensors"
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors | {name: change(tensors[name]).contiguous()}, path)
    with pytest.raises(DamagedError, match=f"{message}.*: restore"):
        Outputs.load(tmp_path / "run")


def test_the_ledgers_entries_have_the_values_they_had():
    found = ledger.entries(FORMAT_1 / "ledger")
    assert found["wrn32-cifar100-snapshot-0.2-seed0"].last_percent == (23.16, 21.79, 21.11, 20.9, 20.89)
    joint = found["densenet40-cifar100-single-x2-seeds0-1"]
    assert joint.runs == ("densenet40-cifar100-single-seed0", "densenet40-cifar100-single-seed1")
    assert joint.error_percent == 56.73


def test_saving_outputs_into_a_folder_of_format_1_leaves_none_of_the_old_ones(tmp_path):
    shutil.copytree(FORMAT_1 / "finished", tmp_path / "run")
    run = Run(tmp_path / "run")
    old = run.outputs()
    last = Outputs(old.members[-1:], old.log_probabilities[-1:, ::-1].copy(), old.labels[::-1].copy())
    last.append(run.path, "test", replace=True)
    with pytest.raises(DamagedError, match="those of step 8 are missing: save the outputs of all members again"):
        run.outputs()


def test_a_resume_rewrites_outputs_of_format_1_so_that_each_belongs_to_its_snapshot(tmp_path):
    shutil.copytree(FORMAT_1 / "interrupted", tmp_path / "run")
    run = Run(tmp_path / "run")
    before = run.outputs().log_probabilities
    prepare([(run.recipe, run.path)], tiny.load, torch.device("cpu"), resume=True)
    assert not (run.path / "outputs.safetensors").exists()
    assert np.array_equal(run.outputs().log_probabilities, before)
    (run.path / "outputs/test.json").unlink()
    with pytest.raises(StoreError, match="contains no outputs of the part 'test'"):
        run.outputs()


def test_a_line_without_a_step_in_a_log_of_format_1_is_ignored(tmp_path):
    shutil.copytree(FORMAT_1 / "finished", tmp_path / "run")
    with open(tmp_path / "run/log.jsonl", "a") as file:
        file.write('{"event": "snapshot", "outputs_sha256": "0"}\n')
    assert len(Run(tmp_path / "run").outputs().steps) == len(Run(FORMAT_1 / "finished").outputs().steps)


def test_outputs_of_format_1_are_kept_if_they_could_not_be_rewritten(tmp_path, monkeypatch):
    shutil.copytree(FORMAT_1 / "interrupted", tmp_path / "run")
    run = Run(tmp_path / "run")

    def full(path, content):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "publish", full)
        with pytest.raises(StoreError, match="no space left"):
            format_1.adopt_outputs(run, ["test"])
    assert np.array_equal(run.outputs().log_probabilities, Run(FORMAT_1 / "interrupted").outputs().log_probabilities)
