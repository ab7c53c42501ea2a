"""A captured step that communicates, on one GPU with a process group of one process; skipped where there is none."""

import pytest
import tiny
import torch
import torch.distributed as dist

from snapens.lab.engine.step import TrainingStep
from snapens.lab.engine.world import World

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOLERANCE = 0.05  # of a loss of about 1.5: bfloat16, as in test_engine_cuda.py
STEPS = 5  # after ten steps, rounding has changed a loss by 0.1


@pytest.fixture
def world(tmp_path):
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield World(0, 1, 0, dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.parametrize("network", ["tiny:residual", "tiny:dense", "tiny:plain"])
def test_a_captured_step_with_communication_has_the_losses_of_the_plain_modules(network, world):
    recipe = tiny.recipe(network=network, dropout=0.2)
    reference = TrainingStep(recipe, tiny.data().place(torch.device("cpu")), recipe.schedule(40))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step = TrainingStep(recipe, tiny.data().place(torch.device("cuda", 0)), recipe.schedule(40), world=world)
        step.rehearse(stream)
        for completed in range(STEPS):
            step(completed)
            reference(completed)
    stream.synchronize()
    assert (step.losses[:STEPS].cpu() - reference.losses[:STEPS]).abs().max() < TOLERANCE
    assert step.completed.item() == STEPS
