"""The engine on a GPU: the captured step, packs on their own streams, resuming; skipped where there is none.

A GPU's sums are not made in the same order every time, and its networks run in bfloat16: runs are compared by their
losses, within what that costs and well below what one step's batch, rate or mask makes of the next.
"""

import numpy as np
import pytest
import tiny
import torch

from snapens import Ensemble
from snapens.errors import ArgumentError, NonFiniteError
from snapens.lab import nets
from snapens.lab.data.placed import PlacedImages
from snapens.lab.engine.feed import Feed
from snapens.lab.engine.pack import prepare, train
from snapens.lab.engine.step import TrainingStep
from snapens.lab.recipe import CutMix, Mirror, Mixup, TrivialAugment
from snapens.lab.records.run import Run
from snapens.weights import tensors

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),  # torch.compile's
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning"),
    # torch.compile's too: it hides this warning by replacing showwarning, which is not called for errors
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TOLERANCE = 0.05  # of a loss of about 1.5; rounding every activation to bfloat16 on a CPU costs 0.001 to 0.01


def stepped(recipe, steps, device=CUDA, captured=True, teachers=()):
    schedule = recipe.schedule(40)
    if device is CPU:
        step = TrainingStep(recipe, tiny.data().place(CPU), schedule, teachers)
        for completed in range(steps):
            step(completed)
        return step
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step = TrainingStep(recipe, tiny.data().place(CUDA), schedule, teachers)
        if captured:
            step.rehearse(stream)
        for completed in range(steps):
            step(completed)
    stream.synchronize()
    return step


def joined(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def assert_close(losses, others):
    """Equal within the tolerance, which tells one step from the next."""
    losses, others = (np.array(row.tolist()) for row in (losses, others))
    assert np.isfinite(losses).all()
    assert np.abs(losses - others).max() < TOLERANCE
    assert np.abs(losses[1:] - others[:-1]).max() > 2 * TOLERANCE


COMPILED = ["tiny:dense", "tiny:residual", "tiny:preactivated"]  # networks with compiled blocks
NETWORKS = ["tiny:net", "small", *COMPILED, "fused"]


@pytest.fixture(autouse=True)
def _fused(monkeypatch):
    """A small DenseNet with a name, which the engine accelerates."""
    entry = ("snapens.lab.nets.dense.densenet:densenet", {"depth": 10, "growth": 12})
    monkeypatch.setitem(nets.NETWORKS, "fused", entry)


def test_the_network_and_the_copy_that_trains_are_accelerated():
    step = stepped(tiny.recipe(network="fused"), 0)
    assert step._live is not step.network
    assert step._live._accelerated
    assert step.network._accelerated
    assert not stepped(tiny.recipe(network="tiny:dense"), 0)._live._accelerated


@pytest.mark.parametrize("network", NETWORKS)
def test_a_captured_step_is_the_step_as_written(network):
    recipe = tiny.recipe(network=network, dropout=0.2, seed=3, lr=0.003)
    captured, eager = stepped(recipe, 20), stepped(recipe, 20, captured=False)
    assert captured._graph is not None
    assert eager._graph is None
    assert captured.completed.tolist() == [20]
    assert_close(captured.losses, eager.losses)
    assert float(captured.optimizer.param_groups[0]["lr"]) == pytest.approx(0.003 * recipe.schedule(40)(19), rel=1e-6)
    ours, theirs, start = (joined(step.network) for step in (captured, eager, stepped(recipe, 0, captured=False)))
    assert (ours - theirs).norm() < 0.4 * (
        theirs - start
    ).norm()  # 0.17 where activations are rounded to bfloat16 on a CPU


@pytest.mark.parametrize("network", NETWORKS)
def test_the_first_step_on_a_gpu_is_the_one_on_a_cpu(network):
    """The same images, crops and masks: a loss of bfloat16 forward passes alone."""
    recipe = tiny.recipe(network=network, dropout=0.5, seed=3)
    assert stepped(recipe, 1).losses[0].item() == pytest.approx(stepped(recipe, 1, CPU).losses[0].item(), rel=0.02)


def test_capturing_changes_nothing_and_moves_nothing():
    recipe, stream = tiny.recipe(network="tiny:dense", dropout=0.2), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step = TrainingStep(recipe, tiny.data().place(CUDA), recipe.schedule(40))
        before = {name: tensor.detach().clone() for name, tensor in step.state().items()}
        places = {name: tensor.data_ptr() for name, tensor in step.state().items()}
        step.rehearse(stream)
    stream.synchronize()
    assert tiny.equal(step.state(), before)
    assert {name: tensor.data_ptr() for name, tensor in step.state().items()} == places
    assert tiny.equal(
        {name: tensor.cpu() for name, tensor in tensors(step.network).items()},
        tensors(nets.build("tiny:dense", classes=4, channels=3, dropout=0.2)),
    )


def test_a_captured_step_goes_on_from_a_loaded_state_and_from_a_restart():
    recipe = tiny.recipe(dropout=0.2)
    whole, step = stepped(recipe, 20), stepped(recipe, 12)
    state = {name: tensor.detach().cpu() for name, tensor in step.state().items()}
    resumed = stepped(recipe, 0)
    resumed.load(state)
    for completed in range(12, 20):
        resumed(completed)
    torch.cuda.synchronize()
    assert torch.equal(resumed.losses[:12].cpu(), state["losses"][:12])
    assert_close(resumed.losses, whole.losses)

    fresh = stepped(recipe, 0, CPU)
    for other in (resumed, fresh):
        other.completed.fill_(3)
        other.restart(cycle=2)
        other(3)
    torch.cuda.synchronize()
    assert resumed.losses[3].item() == pytest.approx(fresh.losses[3].item(), rel=0.02)


ENTRIES = {
    "adamw": {"optimizer": "adamw", "lr": 0.01, "decays": "weights"},
    "trivialaugment": {"transforms": ("mirror", "trivialaugment", "cutout=4")},
    "mixing": {"transforms": ("mirror", "lighting", "mixup=0.4:0.5", "cutmix=1:0.5")},
    "average": {"ema": 0.9, "label_smoothing": 0.1, "transforms": ("mirror", "cutout=4", "lighting")},
    "sam": {"sam": 0.5, "ema": 0.9},
    "sam-norms": {"sam": 0.5, "sam_moves": "norms", "ema": 0.9},
}


@pytest.mark.parametrize("changes", ENTRIES.values(), ids=ENTRIES)
def test_every_entry_of_a_recipe_can_be_captured_and_resumed(changes):
    recipe = tiny.recipe(**changes)
    whole, eager, first = stepped(recipe, 20), stepped(recipe, 20, captured=False), stepped(recipe, 12)
    assert torch.allclose(whole.losses, eager.losses, atol=TOLERANCE)
    ours, theirs, start = (joined(step.kept) for step in (whole, eager, stepped(recipe, 0, captured=False)))
    assert (ours - theirs).norm() < 0.4 * (theirs - start).norm()
    state = {name: tensor.detach().cpu() for name, tensor in first.state().items()}
    resumed = stepped(recipe, 0)
    resumed.load(state)
    assert tiny.equal({name: tensor.cpu() for name, tensor in resumed.state().items()}, state)
    for completed in range(12, 20):
        resumed(completed)
    torch.cuda.synchronize()
    assert torch.allclose(resumed.losses, whole.losses, atol=TOLERANCE)
    assert torch.allclose(joined(resumed.kept), joined(whole.kept), atol=TOLERANCE)


@pytest.mark.parametrize("augmentation", ["none", "crop-mirror", "crop-mirror-rgb"])
@pytest.mark.parametrize("resident", [True, False])
def test_batches_on_a_gpu_are_those_on_a_cpu(monkeypatch, augmentation, resident):
    monkeypatch.setattr(PlacedImages, "resident", resident)
    data = tiny.data(augmentation=augmentation)
    ours, theirs = (Feed(data.place(device), data.transforms, 5, 7) for device in (CUDA, CPU))
    for step in (0, 1, 2, 9, 8, 30):
        batches = []
        for feed, device in ((ours, CUDA), (theirs, CPU)):
            feed.prepare(step)
            batches.append([tensor.cpu() for tensor in feed.read(torch.tensor([step], device=device))[:2]])
        assert torch.allclose(batches[0][0], batches[1][0], atol=1e-5)
        assert torch.equal(batches[0][1], batches[1][1])


@pytest.mark.parametrize("transform", [TrivialAugment(), Mixup(), CutMix()])
def test_a_new_transform_on_a_gpu_is_that_on_a_cpu(transform):
    """After normalisation one grey level is more than 0.01: no pixel differs by one."""
    data = tiny.data(train=400)
    feeds = [(Feed(data.place(device), (Mirror(), transform), 5, 400), device) for device in (CUDA, CPU)]
    for step in range(3):
        found = []
        for feed, device in feeds:
            feed.prepare(step)
            found.append([tensor.cpu() for tensor in feed.read(torch.tensor([step], device=device))[:2]])
        assert torch.allclose(found[0][0], found[1][0], atol=1e-4)
        assert torch.allclose(found[0][1], found[1][1], atol=1e-6)


def test_streamed_batches_wait_for_the_steps_that_still_read_the_buffers(monkeypatch):
    recipe = tiny.recipe(epochs=40, network="small", lr=0.01)
    resident = stepped(recipe, 40)
    monkeypatch.setattr(PlacedImages, "resident", False)
    streamed = stepped(recipe, 40)
    assert_close(streamed.losses[:40], resident.losses[:40])


def trained(*jobs, resume=False, **options):
    trainings = prepare(jobs, tiny.load, CUDA, resume=resume)
    train(trainings, **options)
    torch.cuda.synchronize()
    return trainings


def losses(path):
    return Run(path).state().tensors["losses"]


def events(path):
    return [(line["event"], line["step"]) for line in Run(path).log()]


def test_a_packed_run_is_the_run_alone(tmp_path):
    recipe = tiny.recipe(dropout=0.2, seed=7, held_out=8, epochs=5)
    trained((recipe, tmp_path / "alone"))
    neighbours = [tiny.recipe(seed=1), tiny.recipe(network="tiny:wide", batch=10, epochs=8), recipe]
    pack = trained(*((other, tmp_path / str(k)) for k, other in enumerate(neighbours)))
    assert all(training.finished and training.failure is None for training in pack)
    assert len({training._stream.cuda_stream for training in pack}) == 3
    assert_close(losses(tmp_path / "2"), losses(tmp_path / "alone"))
    assert events(tmp_path / "2") == events(tmp_path / "alone")
    ours, theirs = (Run(tmp_path / name).outputs("held_out") for name in ("2", "alone"))
    assert np.array_equal(ours.labels, theirs.labels)
    assert np.abs(ours.probabilities - theirs.probabilities).max() < 0.2


def test_a_run_that_fails_leaves_its_neighbours_alone(tmp_path):
    failing, other = trained((tiny.recipe(lr=1e30), tmp_path / "failing"), (tiny.recipe(), tmp_path / "other"))
    assert isinstance(failing.failure, NonFiniteError)
    assert [line["event"] for line in failing.run.log()][-1] == "failed"
    assert failing.run.snapshots.steps == ()
    assert other.failure is None
    assert other.run.snapshots.steps == (10, 20)


@pytest.mark.parametrize("method", ["snapshot", "singlecycle"])
def test_a_run_that_was_stopped_goes_on(tmp_path, method):
    recipe = tiny.recipe(dropout=0.2, method=method, epochs=8)  # 40 steps, snapshots at 20 and 40
    trained((recipe, tmp_path / "whole"))
    moved = []
    [training] = trained((recipe, tmp_path / "run"), watch=moved.append, stop=lambda: len(moved) > 3)
    stopped = Run(tmp_path / "run").state()
    assert 20 < stopped.completed == training.completed < 40
    [training] = prepare([(recipe, tmp_path / "run")], tiny.load, CUDA, resume=True)
    assert training.completed == stopped.completed
    torch.cuda.synchronize()
    on_device = {name: tensor.detach().cpu() for name, tensor in training.step.state().items()}
    assert tiny.equal(on_device, stopped.tensors)
    train([training])
    assert training.finished
    assert torch.equal(losses(tmp_path / "run")[: stopped.completed], stopped.tensors["losses"][: stopped.completed])
    assert_close(losses(tmp_path / "run"), losses(tmp_path / "whole"))
    assert events(tmp_path / "run") == events(tmp_path / "whole")


def test_a_run_made_on_a_gpu_is_read_on_a_cpu(tmp_path):
    [training] = trained((tiny.recipe(network="small", epochs=8), tmp_path / "run"))
    data = tiny.data()
    mean, deviation = (np.array(row) for row in data.normalisation())
    x = torch.from_numpy((data.test.pixels - mean) / deviation).float().permute(0, 3, 1, 2)
    ensemble = Ensemble.load(tmp_path / "run", nets.build("small", classes=4, channels=3))
    outputs = Run(tmp_path / "run").outputs()
    assert np.abs(outputs.probabilities - ensemble.outputs([(x, outputs.labels)]).probabilities).max() < 0.03
    finished = list(training.run.log())[-1]
    assert finished["event"] == "finished"
    assert finished["device"] == torch.cuda.get_device_name()
    assert finished["peak_memory_bytes"] > 0


def test_between_minima_the_engine_never_waits_for_the_device(tmp_path):
    [training] = prepare([(tiny.recipe(epochs=80), tmp_path / "run")], tiny.load, CUDA)  # a line every 5 steps
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        while training.completed < 160:  # of 200 in the first cycle
            training._bursts.clear()  # as if the device had room
            training.advance()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    train([training])
    assert training.failure is None
    assert training.run.snapshots.steps == (200, 400)
    assert [step for event, step in events(tmp_path / "run") if event == "trained"] == list(range(5, 401, 5))


def test_a_pack_that_does_not_fit_is_refused_before_a_folder_is_made(tmp_path):
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        with pytest.raises(
            ArgumentError, match="a pack must fit into the memory of cuda, got 1 runs, of which not even"
        ):
            prepare([(tiny.recipe(network="tiny:residual"), tmp_path / "run")], tiny.load, CUDA)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert not (tmp_path / "run").exists()


def test_the_line_between_snapshots_ends_at_them(tmp_path):
    [training] = trained((tiny.recipe(network="tiny:residual", epochs=8), tmp_path / "run"))
    training.measure_between()
    [line] = training.run.curves().lines
    first, last = training.run.outputs().member_errors
    assert line.interpolated_percent[0] == pytest.approx(100 * first, abs=6)  # one test image of twenty may tip over
    assert line.interpolated_percent[-1] == pytest.approx(100 * last, abs=6)
