"""What happens under DDP in two processes; see `two_ranks.py`."""

from functools import partial

import torch
import torch.distributed as dist
from conftest import Net
from rank_models import SCHEDULE, rejected, sgd, train
from torch.nn.parallel import DistributedDataParallel

from snapens import SnapshotEnsembler, Snapshots, fresh_weights
from snapens.errors import ArgumentError, NonFiniteError, SnapensError, StoreError


def ddp(compiled=False):
    model = DistributedDataParallel(Net())
    return torch.compile(model, backend="eager") if compiled else model


def all_ranks_see_the_same_snapshots(rank, path, compiled=False):
    model = ddp(compiled)
    optimizer = sgd(model)
    ensembler = SnapshotEnsembler(model, optimizer, SCHEDULE, store=path / "run")
    train(model, ensembler, 4)
    assert ensembler.snapshots.steps == (2, 4)
    assert Snapshots(path / "run").load(4).keys() == Net().state_dict().keys()
    x = torch.ones(2, 4)
    mine = ensembler.ensemble()(x)
    theirs = [torch.empty_like(mine), torch.empty_like(mine)]
    dist.all_gather(theirs, mine)
    assert torch.equal(theirs[0], theirs[1])
    state = ensembler.state_dict()
    assert list(state["store"]["snapshots"]) == [2, 4]
    state["completed"] = 2
    ensembler.load_state_dict(state)
    assert ensembler.ensemble().steps == (2,)  # on both, though the folder still has step 4
    dist.barrier()
    train(model, ensembler, 2)
    assert Snapshots(path / "run").steps == (2, 4)


def a_compiled_model_is_unwrapped(rank, path):
    all_ranks_see_the_same_snapshots(rank, path, compiled=True)


def a_framework_passes_the_module_inside_the_wrapper(rank, path):
    model = ddp()
    optimizer = sgd(model)
    group = dist.group.WORLD
    ensembler = SnapshotEnsembler(model.module, optimizer, SCHEDULE, store=path / "run", process_group=group)
    train(model, ensembler, 3)
    ensembler.rewind(2)
    train(model, ensembler, 2)
    assert Snapshots(path / "run").steps == (2, 4)
    again = partial(SnapshotEnsembler, model.module, optimizer, SCHEDULE, store=path / "run", process_group=group)
    rejected(StoreError, again, "holds those of steps 2, 4")


class UnsendableError(Exception):
    """An error that pickle writes but cannot restore."""

    def __init__(self, what, where):
        super().__init__(f"{what} on {where}")


def an_error_that_cannot_be_sent_is_described_to_the_other_rank(rank, path):
    def keep():
        if rank == 1:
            raise UnsendableError("no weights", "rank 1")
        return {}

    model = ddp()
    kind, text = (SnapensError, "UnsendableError: no weights") if rank == 0 else (UnsendableError, "no weights")
    rejected(kind, lambda: SnapshotEnsembler(model, sgd(model), SCHEDULE, keep=keep), f"{text} on rank 1")


def fresh_weights_are_those_of_rank_0(rank, path):
    model = ddp()
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "run", on_restart=fresh_weights(Net))
    train(model, ensembler, 2)
    weights = [torch.empty(3, 8), torch.empty(3, 8)]
    dist.all_gather(weights, model.module.head.weight.detach())
    assert torch.equal(weights[0], weights[1])


def errors_of_rank_0_are_raised_on_all_ranks(rank, path):
    model = ddp()
    optimizer = sgd(model)
    (path / "file").touch()
    rejected(
        StoreError, lambda: SnapshotEnsembler(model, optimizer, SCHEDULE, store=path / "file"), "could not be written"
    )
    ensembler = SnapshotEnsembler(model, optimizer, SCHEDULE)
    train(model, ensembler, 1)
    with torch.no_grad():
        model.module.head.bias.fill_(torch.nan)
    rejected(NonFiniteError, ensembler.step, "head.bias")
    with torch.no_grad():
        model.module.head.bias.zero_()
    assert ensembler.step() == 2
    if rank == 0:
        assert ensembler.ensemble().steps == (2,)
    else:
        rejected(ArgumentError, ensembler.ensemble, "got memory, which only rank 0 has")


def a_nan_on_one_rank_is_found_before_training(rank, path):
    model = ddp()
    if rank == 1:
        model.module.norm.running_mean.fill_(torch.nan)
    rejected(NonFiniteError, lambda: SnapshotEnsembler(model, sgd(model), SCHEDULE), "norm.running_mean")


def an_interrupt_of_rank_0_ends_the_step_of_all_ranks(rank, path):
    model = ddp()
    ensembler = SnapshotEnsembler(model, sgd(model), SCHEDULE, store=path / "run")
    train(model, ensembler, 1)
    commit = ensembler.snapshots.commit

    def interrupt(*_, **options):
        raise KeyboardInterrupt

    if rank == 0:
        ensembler.snapshots.commit = interrupt
    rejected(KeyboardInterrupt, ensembler.step)
    ensembler.snapshots.commit = commit
    assert ensembler.completed == 1
    assert ensembler.step() == 2
