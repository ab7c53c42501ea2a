"""Distillation on a GPU: the teacher in the captured step; skipped where there is none."""

from dataclasses import replace

import pytest
import tiny
import torch
from test_engine_cuda import CPU, CUDA, NETWORKS, _fused, losses, pytestmark, stepped

from snapens.lab.engine.network import precision
from snapens.lab.engine.pack import prepare, train
from snapens.lab.engine.teacher import teacher_of
from snapens.lab.recipe import Distillation
from snapens.lab.records.run import Run

__all__ = ["_fused", "pytestmark"]  # pytest finds them here
TOLERANCE = 0.03  # of a loss of about 0.5


def assert_close(losses, others):
    """Equal within the tolerance, which tells one step from the next."""
    assert (losses - others).abs().max() < TOLERANCE
    assert (losses[1:] - others[:-1]).abs().max() > 2 * TOLERANCE


def distilled(path, network="small", *, teacher_network="small", lr=0.003, **changes):
    """Train a teacher on the CPU; the recipe of its student, with a low rate, so that rounding is not amplified."""
    train(prepare([(tiny.recipe(network=teacher_network, seed=5, epochs=40), path)], tiny.load, CPU))
    recipe = tiny.recipe(network=network, lr=lr, **changes)
    return replace(recipe, objective=Distillation(teacher_of(path), 0.7, 2.0))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_captured_step_with_a_teacher_is_the_step_as_written_and_that_of_a_cpu(tmp_path, network):
    recipe = distilled(tmp_path, network, teacher_network=network, dropout=0.2, seed=3)
    captured, eager = (stepped(recipe, 20, captured=captured, teachers=[tmp_path]) for captured in (True, False))
    assert captured._graph is not None
    assert_close(captured.losses, eager.losses)
    first = stepped(recipe, 1, CPU, teachers=[tmp_path]).losses[0].item()
    assert captured.losses[0].item() == pytest.approx(first, rel=0.03)


def test_the_members_on_a_gpu_predict_what_they_predict_on_a_cpu(tmp_path):
    recipe = distilled(tmp_path, teacher_network="tiny:residual")
    x = torch.randn(16, 3, 8, 8)
    steps = [stepped(recipe, 2, device, teachers=[tmp_path]) for device in (CUDA, CPU)]
    found = []
    for step, device in zip(steps, (CUDA, CPU), strict=True):
        with precision(device):
            found.append(step._objective.log_mean(x.to(device)).exp().cpu())
    assert torch.allclose(*found, atol=0.03)
    members = steps[0]._objective._members
    convolutions = [module for member in members for module in member.modules() if isinstance(module, torch.nn.Conv2d)]
    assert {module.weight.dtype for module in convolutions} == {torch.bfloat16}
    assert not any(module.training for member in members for module in member.modules())


def test_a_packed_student_is_the_student_alone_and_never_waits_for_the_device(tmp_path):
    recipe = distilled(tmp_path / "teacher", epochs=80)
    train(prepare([(recipe, tmp_path / "alone")], tiny.load, CUDA, teachers=[tmp_path / "teacher"]))
    jobs = [(tiny.recipe(seed=1), tmp_path / "plain"), (recipe, tmp_path / "run")]
    _, training = pack = prepare(jobs, tiny.load, CUDA, teachers=[tmp_path / "teacher"])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        while training.completed < 160:  # of 200 in the first cycle
            training._bursts.clear()  # as if the device had room
            training.advance()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    train(pack)
    assert all(one.finished and one.failure is None for one in pack)
    alone, packed = (losses(tmp_path / name)[:40] for name in ("alone", "run"))
    assert_close(packed, alone)


def test_a_student_that_was_stopped_continues(tmp_path):
    recipe = distilled(tmp_path / "teacher", "tiny:residual", epochs=8, dropout=0.2)
    folders = [tmp_path / "teacher"]
    train(prepare([(recipe, tmp_path / "whole")], tiny.load, CUDA, teachers=folders))
    moved = []
    stopping = prepare([(recipe, tmp_path / "run")], tiny.load, CUDA, teachers=folders)
    train(stopping, watch=moved.append, stop=lambda: len(moved) > 3)
    assert 20 < Run(tmp_path / "run").state().completed < 40
    train(prepare([(recipe, tmp_path / "run")], tiny.load, CUDA, resume=True, teachers=folders))
    assert Run(tmp_path / "run").finished
    assert_close(losses(tmp_path / "run"), losses(tmp_path / "whole"))
