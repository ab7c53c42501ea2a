"""The scenarios of `test_ranks.py`: a script that torchrun starts in two processes.

All scenarios share one start, because it takes longer than the scenarios. When a rank fails, torchrun ends the other.
"""

import inspect
import os
import sys
from pathlib import Path

import ddp_scenarios
import fsdp_scenarios
import torch
import torch.distributed as dist

SCENARIOS = {
    f"{kind} {name}".replace("_", " "): function
    for kind, module in (("DDP", ddp_scenarios), ("FSDP2", fsdp_scenarios))
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if list(inspect.signature(function).parameters)[:2] == ["rank", "path"]
}


def main(path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name, scenario in SCENARIOS.items():
        torch.manual_seed(rank)
        if rank == 0:
            print(name, flush=True)
            (path / name).mkdir()
        dist.barrier()
        scenario(rank, path / name)
        dist.barrier()  # rank 0 holds the store that the other ranks still use
    (path / f"rank {rank} has finished").touch()
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo that outlive the interpreter may abort it (pytorch/pytorch#179291)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
