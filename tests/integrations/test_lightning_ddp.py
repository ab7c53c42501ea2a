"""Several processes: Lightning hides its wrappers, but the process group and FSDP1 are found, and one rank writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

pytest.importorskip("lightning")

from lightning.pytorch.callbacks import Callback
from lit import Lit, loader, trainer

from snapens.errors import ArgumentError
from snapens.integrations.lightning import SnapshotCallback

pytestmark = pytest.mark.skipif(not dist.is_available() or sys.platform == "win32", reason="needs gloo")


def test_two_processes_under_ddp_and_fsdp2_store_what_a_plain_ddp_loop_stores_and_resume(tmp_path):
    script = Path(__file__).with_name("lightning_two_processes.py")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # conftest.py
    done = subprocess.run([sys.executable, script, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.name for path in tmp_path.glob("rank *")} == {"rank 0 has finished", "rank 1 has finished"}
    assert "store must be a folder for an ensemble on every rank" in done.stderr  # once, by the rank that has none


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*`val_dataloader`")
def test_fsdp1_around_the_module_is_rejected(tmp_path, monkeypatch):
    class Wrap(Callback):
        """Stands for FSDPStrategy, which needs a GPU."""

        def on_train_start(self, trainer, module):
            trainer.strategy.model = FullyShardedDataParallel(module, device_id=torch.device("cpu"))

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        with pytest.raises(ArgumentError, match="FSDP"):
            trainer(Wrap(), SnapshotCallback(2, store=None)).fit(Lit(), loader())
    finally:
        dist.destroy_process_group()
