"""Two processes train a run together: the same weights as one process, the same errors in both."""

import os
import shutil
import socket
import sys

import pytest
import tiny
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from snapens.errors import ArgumentError, NonFiniteError, ProcessError, SnapensError, StoreError
from snapens.lab.engine.norms import SynchronisedNorms
from snapens.lab.engine.pack import prepare, train
from snapens.lab.engine.step import TrainingStep
from snapens.lab.engine.teacher import teacher_of
from snapens.lab.engine.world import World, joined
from snapens.lab.recipe import Distillation, Snapshot, sharpness
from snapens.lab.records.run import Run

pytestmark = pytest.mark.skipif(not dist.is_available() or sys.platform == "win32", reason="needs gloo")
CPU = torch.device("cpu")
PLAIN = tiny.recipe(network="tiny:plain", dropout=0.3, ema=0.9, seed=3)
"""20 steps with crops, flips and dropout, without BatchNorm."""
GROW = tiny.recipe(network="tiny:plain", method="grow", pattern=("fresh", "warm"), cycles=4, held_out=8)
NORM = tiny.recipe(network="small", dropout=0.2)
SAM = tiny.recipe(network="small", sam=0.05, sam_every=2)  # each process has every second example, too
LOCAL = tiny.recipe(network="tiny:net")
SAME = 1e-5  # float32 rounds weights of this size to about 1e-7, in each of 20 steps


def after(steps):
    """Ask to stop after some steps: called once at the start, then after each step of several processes."""
    calls = iter(range(steps + 1))
    return lambda: next(calls, steps) == steps


def trained(*jobs, world=None, resume=False, teachers=(), **options):
    trainings = prepare(jobs, tiny.load, CPU, resume=resume, teachers=teachers, world=world)
    train(trainings, **options)
    return trainings


def largest_difference(path, other):
    ours, theirs = Run(path).snapshots, Run(other).snapshots
    assert ours.steps == theirs.steps != ()
    pairs = [(ours.load(step), theirs.load(step)) for step in ours.steps]
    assert all(a.keys() == b.keys() for a, b in pairs)
    return max((a[name].double() - b[name].double()).abs().max().item() for a, b in pairs for name in a)


def equal_on_all(world, tensor):
    return all(torch.equal(row, tensor) for row in world.gather(tensor))


def rank_main(rank, address, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    for scenario in scenarios:
        scenario(World(rank, 2, rank, dist.group.WORLD), path)
    (path / f"rank {rank} has finished").touch()
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo that outlive the interpreter may abort it (pytorch/pytorch#179291)


def tensors_are_combined(world, path):
    one, other = torch.full((2, 3), float(world.rank)), torch.tensor([4.0 + world.rank], dtype=torch.float64)
    world.average([one, other])
    assert one.tolist() == [[0.5] * 3] * 2
    assert other.tolist() == [4.5]
    counts = torch.tensor([world.rank + 7])
    world.share([one.add_(world.rank), counts])
    assert (one[0, 0].item(), counts.item()) == (0.5, 7)
    assert world.any(world.rank == 1)
    assert not world.any(False)


def errors_are_raised_on_both(world, path):
    def fail_on(rank):
        if world.rank == rank:
            raise StoreError("the disk is full")
        return world.rank

    assert world.agree(lambda: world.rank) == world.rank
    assert world.first(lambda: world.rank) == 0
    with pytest.raises(StoreError if world.is_first else SnapensError, match="the disk is full"):
        world.agree(lambda: fail_on(0))
    with pytest.raises(SnapensError, match="disk is full" if world.rank else "rank 1 failed: StoreError: the"):
        world.agree(lambda: fail_on(1))
    with pytest.raises(ArgumentError, match=r"batch must be divisible by the number of processes, 2, got 5"):
        world.part(5)


def norms_have_the_statistics_of_the_whole_batch(world, path):
    """Compared with torch's own layer on the whole batch, in float64."""
    for kind, shape in ((nn.BatchNorm1d, (6, 3)), (nn.BatchNorm2d, (6, 3, 4, 2))):
        for options in ({}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}):
            torch.manual_seed(0)
            whole, ours = (kind(3, **options, dtype=torch.float64) for _ in range(2))
            norms = SynchronisedNorms(ours)
            for _ in range(2):
                x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
                part = x.detach()[world.part(6)].requires_grad_()
                whole(x).pow(3).mean().backward()
                with norms.across(world):
                    found = ours(part)
                found.pow(3).mean().backward()
            # the loss of a rank is the mean over its part: the mean over all is half the sum
            torch.testing.assert_close(part.grad / 2, x.grad[world.part(6)])
            gradients = [parameter.grad for parameter in ours.parameters()]
            if gradients:
                world.average(gradients)
            torch.testing.assert_close(gradients, [parameter.grad for parameter in whole.parameters()])
            torch.testing.assert_close(dict(ours.named_buffers()), dict(whole.named_buffers()))
            torch.testing.assert_close(ours.eval()(x), whole.eval()(x))


def the_variance_is_precise_where_the_mean_is_large(world, path):
    """A sum of squares in float32 would lose all digits of this variance."""
    torch.manual_seed(0)
    x = torch.randn(64, 1, dtype=torch.float64) + 1e4
    norm = nn.BatchNorm1d(1, momentum=1.0)
    with SynchronisedNorms(norm).across(world):
        norm(x.float()[world.part(64)])
    torch.testing.assert_close(norm.running_var, x.float().double().var(0).float(), rtol=1e-5, atol=0)


def weights_agree_with_one_process(world, path):
    """The jobs share a pack; the parent trained them alone."""
    trainings = trained(*((recipe, path / f"two-{name}") for name, recipe in RUNS.items()), world=world)
    assert all(training.failure is None for training in trainings)
    for training in trainings:
        assert all(equal_on_all(world, tensor.detach()) for tensor in training.step.state().values())
    teachers = [path / "one-plain"]
    recipe = tiny.recipe(network="tiny:plain", epochs=1, cycles=1)
    recipe = tiny.replace(recipe, objective=Distillation(teacher_of(teachers[0])), method=Snapshot(1))
    trained((recipe, path / "two-distilled"), world=world, teachers=teachers)
    if world.is_first:
        trained((recipe, path / "one-distilled"), teachers=teachers)
        assert largest_difference(path / "two-distilled", path / "one-distilled") < SAME


def local_statistics_are_those_of_each_part(world, path):
    recipe = tiny.replace(LOCAL, batchnorm_parts=2)
    step = TrainingStep(recipe, tiny.data().place(CPU), recipe.schedule(40), world=world)
    step.feed.prepare(0)
    expected = 0.1 * step.network.conv(step.feed.read(step.completed).inputs).mean((0, 2, 3)).detach()
    step(0)
    torch.testing.assert_close(step.network.norm.running_mean, expected)
    assert not equal_on_all(world, expected)
    sharp = tiny.replace(LOCAL, sharpness=sharpness.SAM(every=3))
    with pytest.raises(SnapensError, match="sam_every must divide batch / processes = 4, got 3: use another"):
        prepare([(sharp, path / "sharp")], tiny.load, CPU, world=world)
    with pytest.raises(SnapensError, match="batchnorm_parts must be the number of processes, 2, or 1, got 3"):
        prepare([(tiny.replace(LOCAL, batchnorm_parts=3), path / "three")], tiny.load, CPU, world=world)


def runs_are_stopped_and_resumed(world, path):
    """One process, which does not stop, is the reference; the parent has stopped `begun` alone after some steps."""
    trained((PLAIN, path / "stopped"), world=world, stop=after(7) if world.rank else lambda: False)
    assert Run(path / "stopped").state().completed == 7
    private = path if world.is_first else path / "nothing"  # only rank 0 has the folder
    trained((PLAIN, private / "begun"), world=world, resume=True)
    assert not (path / "nothing").exists()


def errors_of_a_run_stop_it_on_both(world, path):
    def unreadable(recipe):
        if world.rank == 1:
            raise StoreError("no such data")
        return tiny.data()

    with pytest.raises(SnapensError, match="no such data"):
        prepare([(PLAIN, path / "unreadable")], unreadable, CPU, world=world)
    with pytest.raises(
        SnapensError, match="MismatchError: data must be" if world.is_first else "^data must be the same"
    ):
        prepare([(PLAIN, path / "unreadable")], lambda _: tiny.data(train=40 + world.rank), CPU, world=world)
    with pytest.raises(SnapensError, match="recipes must be the same for all processes"):
        prepare([(tiny.recipe(seed=world.rank), path / "unreadable")], tiny.load, CPU, world=world)
    with pytest.raises(SnapensError, match="must be a folder without a run"):
        prepare([(PLAIN, path / "two-plain")], tiny.load, CPU, world=world)
    assert not (path / "unreadable").exists()
    diverging = tiny.recipe(network="tiny:head", lr=1e30)
    failing, other = prepare([(diverging, path / "nan"), (PLAIN, path / "beside")], tiny.load, CPU, world=world)
    train([failing, other])
    assert isinstance(failing.failure, NonFiniteError)
    assert other.finished
    [full] = prepare([(PLAIN, path / "full")], tiny.load, CPU, world=world)

    def no_space(*_):
        raise OSError("no space left")

    full.run.add_outputs = no_space  # only rank 0 writes
    train([full])
    assert "no space left" in str(full.failure)


scenarios = (
    tensors_are_combined,
    errors_are_raised_on_both,
    norms_have_the_statistics_of_the_whole_batch,
    the_variance_is_precise_where_the_mean_is_large,
    weights_agree_with_one_process,
    local_statistics_are_those_of_each_part,
    runs_are_stopped_and_resumed,
    errors_of_a_run_stop_it_on_both,
)
RUNS = {"plain": PLAIN, "grow": GROW, "norm": NORM, "sam": SAM}


def address():
    """A free address on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def test_one_process_of_torchrun_is_alone(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert joined() == World()


def test_a_process_may_have_one_example_with_its_own_statistics():
    """Its values are those of all pixels."""
    recipe = tiny.replace(tiny.recipe(network="small", batch=2), batchnorm_parts=2)
    for sam in (None, sharpness.SAM(every=1)):
        World(0, 2).check(tiny.replace(recipe, sharpness=sam))


@pytest.fixture
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=address(), rank=0, world_size=1)
    yield World(0, 1, 0, dist.group.WORLD)
    dist.destroy_process_group()


def test_an_error_in_a_step_cannot_be_shared_and_ends_all_runs(tmp_path, group):
    jobs = [(tiny.recipe(network="tiny:raising"), tmp_path / "a"), (PLAIN, tmp_path / "b")]
    trainings = prepare(jobs, tiny.load, CPU, world=group)
    with pytest.raises(ProcessError, match="rank 0 failed: RuntimeError: the fourth step is one too many"):
        train(trainings)
    assert Run(tmp_path / "b").state().completed == 0


def test_a_log_that_only_the_first_process_writes_ends_all_runs_if_it_cannot_be_written(tmp_path, group):
    trainings = prepare([(PLAIN, tmp_path / "a"), (PLAIN, tmp_path / "b")], tiny.load, CPU, world=group)

    def no_space(*_, **__):
        raise OSError("no space left")

    trainings[0].run.note = no_space
    with pytest.raises(ProcessError, match="the process with rank 0 failed: OSError: no space left"):
        train(trainings)


def test_a_norm_that_may_do_more_than_normalise_is_not_synchronised():
    class WithActivation(nn.BatchNorm2d):
        pass

    with pytest.raises(
        ArgumentError, match=r"BatchNorm layers of torch's own types .* got WithActivation: use --local"
    ):
        SynchronisedNorms(nn.Sequential(WithActivation(2)))


def test_two_processes(tmp_path, monkeypatch):
    """All scenarios share two processes, because starting these takes longer than the scenarios."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    trained(*((recipe, tmp_path / f"one-{name}") for name, recipe in RUNS.items()))
    calls = iter(range(1000))
    training = trained((PLAIN, tmp_path / "begun"), stop=lambda: next(calls) > 0)[0]  # after a burst
    assert 0 < training.completed < 10
    mp.spawn(rank_main, args=(address(), tmp_path), nprocs=2)
    assert {path.name for path in tmp_path.glob("rank *")} == {"rank 0 has finished", "rank 1 has finished"}
    assert largest_difference(tmp_path / "two-plain", tmp_path / "one-plain") < SAME
    assert largest_difference(tmp_path / "two-grow", tmp_path / "one-grow") < SAME
    assert largest_difference(tmp_path / "begun", tmp_path / "one-plain") < SAME
    shutil.copytree(tmp_path / "stopped", tmp_path / "again")
    trained((PLAIN, tmp_path / "again"), resume=True)
    assert largest_difference(tmp_path / "again", tmp_path / "one-plain") < SAME
    assert largest_difference(tmp_path / "two-norm", tmp_path / "one-norm") < SAME
    assert largest_difference(tmp_path / "two-sam", tmp_path / "one-sam") < SAME
    assert Run(tmp_path / "two-plain").finish_event["device"].startswith("2 × CPU")
    assert [line["event"] for line in Run(tmp_path / "two-plain").log()] == [
        line["event"] for line in Run(tmp_path / "one-plain").log()
    ]
