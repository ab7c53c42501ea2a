"""The device that a command uses, and its name."""

import ctypes
import os
import sys

import torch
import torch.distributed as dist

from ...errors import ArgumentError

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, in malloc.h


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


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next step, instead of returning it to the kernel.

    With images of 224 x 224 pixels, returning it took up to half of the CPU time of a step (glibc 2.36, one thread of a
    2-core virtual machine).
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        # glibc before 2.35 rejects more than 32 MiB; without the first setting, the second one would slow training down
        if library.mallopt(_MMAP_THRESHOLD, 1 << 25):
            library.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)


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
