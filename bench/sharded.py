"""Measures what a snapshot under FSDP2 adds to the peak memory of rank 0 (two processes, gloo, CPU, Linux):

    torchrun --nproc-per-node 2 bench/sharded.py

The model has eight matrices of 36 MiB (288 MiB in total) and is stored in a folder. Our commit gathers one tensor at a
time. The other number is that of `get_model_state_dict(full_state_dict=True, cpu_offload=True)`, which writes nothing.
"""

import tempfile

import torch
import torch.distributed as dist
from core import peak
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from snapens import CyclicCosine, SnapshotEnsembler


def main() -> None:
    dist.init_process_group("gloo")
    model = nn.Sequential(*(nn.Linear(3072, 3072, bias=False) for _ in range(8)))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    with tempfile.TemporaryDirectory() as folder:
        ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(3, 3), store=folder)
        before = peak(lambda: None)
        ours = max(peak(ensembler.step) for _ in range(3)) - before
        theirs = peak(lambda: get_model_state_dict(model, options=full)) - before
        dist.barrier()
    if dist.get_rank() == 0:
        print(f"commit: {ours / 2**20:.0f} MiB; full state dict: {theirs / 2**20:.0f} MiB, for a model of 288 MiB")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
