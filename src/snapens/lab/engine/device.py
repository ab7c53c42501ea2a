"""The device that a command uses, and its name."""

import os

import torch
import torch.distributed as dist

from ...errors import ArgumentError


def chosen_device(name: str) -> torch.device:
    """The device with this name; "auto" is a GPU if there is one, else the CPU."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device must be available, got cuda, but torch finds no GPU: use cpu or auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return _gpu_of_process() if name == "cuda" else torch.device(name)


def device_name(device: torch.device) -> str:
    """The name of a GPU, or the number of CPU threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads > 1)}"


def _gpu_of_process() -> torch.device:
    """The GPU of this process: torch's current one, or under torchrun the one with the process's local rank."""
    if not dist.is_available() or not dist.is_torchelastic_launched():
        return torch.device("cuda")
    local_rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local_rank >= gpus:
        raise ArgumentError(
            f"the number of processes must be at most that of GPUs, {gpus}, got process {local_rank + 1} on this "
            "machine: use a smaller --nproc-per-node, or --device cpu"
        )
    return torch.device("cuda", local_rank)
