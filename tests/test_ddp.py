"""Two processes on this machine: every rank steps, only rank 0 writes, and its errors are raised on all ranks."""

import os
import socket
import sys
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import Net
from torch.nn.parallel import DistributedDataParallel

from snapens import CyclicCosine, SnapshotEnsembler, Snapshots, fresh_weights
from snapens.errors import ArgumentError, NonFiniteError, StoreError

pytestmark = pytest.mark.skipif(not dist.is_available() or sys.platform == "win32", reason="needs gloo")
SCHEDULE = CyclicCosine(4, 2)


def train(model, ensembler, steps):
    for _ in range(steps):
        model(torch.randn(6, 4)).square().mean().backward()
        ensembler.optimizer.step()
        ensembler.optimizer.zero_grad()
        ensembler.step()


def rejected(error, action, words):
    with pytest.raises(error, match=words):
        action()


def rendezvous():
    """A free address on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def rank_main(rank, address, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    for name, scenario in scenarios.items():
        torch.manual_seed(rank)
        model = DistributedDataParallel(Net())
        if name == "compiled":
            model = torch.compile(model, backend="eager")
        (path / name).mkdir(exist_ok=True)
        scenario(rank, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), path / name)
        dist.barrier()  # rank 0 holds the store that the other ranks still use
    (path / f"rank {rank} has finished").touch()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo that outlive the interpreter may abort it (pytorch/pytorch#179291)


def plain(rank, model, optimizer, path):
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


def hidden(rank, model, optimizer, path):
    """A framework passes the module inside DDP."""
    group = dist.group.WORLD
    ensembler = SnapshotEnsembler(model.module, optimizer, SCHEDULE, store=path / "run", process_group=group)
    train(model, ensembler, 3)
    ensembler.rewind(2)
    train(model, ensembler, 2)
    assert Snapshots(path / "run").steps == (2, 4)
    again = partial(SnapshotEnsembler, model.module, optimizer, SCHEDULE, store=path / "run", process_group=group)
    rejected(StoreError, again, "holds those of steps 2, 4")


def fresh(rank, model, optimizer, path):
    ensembler = SnapshotEnsembler(model, optimizer, SCHEDULE, store=path / "run", on_restart=fresh_weights(Net))
    train(model, ensembler, 2)
    weights = [torch.empty(3, 8), torch.empty(3, 8)]
    dist.all_gather(weights, model.module.head.weight.detach())
    assert torch.equal(weights[0], weights[1])


def errors(rank, model, optimizer, path):
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


def interrupted(rank, model, optimizer, path):
    ensembler = SnapshotEnsembler(model, optimizer, SCHEDULE, store=path / "run")
    train(model, ensembler, 1)
    commit = ensembler.snapshots.commit

    def interrupt(*_, **options):
        raise KeyboardInterrupt

    ensembler.snapshots.commit = interrupt  # only rank 0 commits
    rejected(KeyboardInterrupt, ensembler.step, "")
    ensembler.snapshots.commit = commit
    assert ensembler.completed == 1
    assert ensembler.step() == 2


scenarios = {
    "plain": plain,
    "compiled": plain,
    "hidden": hidden,
    "fresh": fresh,
    "errors": errors,
    "interrupted": interrupted,
}


def test_two_ranks(tmp_path):
    """All scenarios share two processes, because starting these takes longer than the scenarios."""
    mp.spawn(rank_main, args=(rendezvous(), tmp_path), nprocs=2)
    assert {path.name for path in tmp_path.glob("rank *")} == {"rank 0 has finished", "rank 1 has finished"}


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_fsdp_is_rejected():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    dist.init_process_group("gloo", init_method=rendezvous(), rank=0, world_size=1)
    try:
        new = Net()
        fully_shard(new, mesh=init_device_mesh("cpu", (1,)))
        for model in (new, FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=torch.device("cpu"))):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with pytest.raises(ArgumentError, match="under FSDP, which is not supported yet"):
                SnapshotEnsembler(model, optimizer, SCHEDULE)
    finally:
        dist.destroy_process_group()
