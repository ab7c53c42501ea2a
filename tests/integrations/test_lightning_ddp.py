"""Two processes that Lightning starts itself: the process group is found, and one rank writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

pytest.importorskip("lightning")
pytestmark = pytest.mark.skipif(not dist.is_available() or sys.platform == "win32", reason="needs gloo")


def test_two_processes_store_what_a_plain_ddp_loop_stores_and_resume(tmp_path):
    script = Path(__file__).with_name("lightning_two_processes.py")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # conftest.py
    done = subprocess.run([sys.executable, script, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.name for path in tmp_path.glob("rank *")} == {"rank 0 has finished", "rank 1 has finished"}
    assert "store must be a folder for an ensemble on every rank" in done.stderr  # once, by the rank that has none
