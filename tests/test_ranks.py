"""Two processes on this machine, under DDP and FSDP2: every rank steps, and only rank 0 writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from snapens import CyclicCosine, SnapshotEnsembler
from snapens.errors import ArgumentError

pytestmark = pytest.mark.skipif(not dist.is_available() or sys.platform == "win32", reason="needs gloo")
SCRIPT = Path(__file__).parent / "two_ranks.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
LOOPBACK = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1")


def test_all_scenarios_end_on_both_ranks(tmp_path):
    settings = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, *LOOPBACK, SCRIPT, tmp_path]
    ended = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-8000:]
    assert {path.name for path in tmp_path.glob("rank *")} == {"rank 0 has finished", "rank 1 has finished"}


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_fsdp1_is_rejected(one_rank):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=torch.device("cpu"))
    with pytest.raises(ArgumentError, match=r"FSDP1.*use torch.distributed.fsdp.fully_shard \(FSDP2\)"):
        SnapshotEnsembler(model, torch.optim.SGD(model.parameters(), lr=0.1), CyclicCosine(4, 2))


def test_the_snapshot_of_a_single_shard_is_a_copy(one_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(2, 2, bias=False)
    expected = model.weight.detach().clone()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    ensembler = SnapshotEnsembler(model, torch.optim.SGD(model.parameters(), lr=0.1), CyclicCosine(2, 1))
    ensembler.step()
    ensembler.step()
    with torch.no_grad():
        model.weight.to_local().zero_()  # gathered from one rank, it is the same memory
    assert torch.equal(ensembler.snapshots.load(2)["weight"], expected)
