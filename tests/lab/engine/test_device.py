import pytest
import torch

from snapens.errors import ArgumentError
from snapens.lab.engine.device import chosen_device, device_name


@pytest.mark.parametrize(
    ("name", "available", "device"),
    [("auto", True, "cuda"), ("auto", False, "cpu"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_a_device_is_chosen_by_its_name(monkeypatch, name, available, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert chosen_device(name) == torch.device(device)


def test_a_gpu_that_is_not_there_is_rejected(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ArgumentError, match="device must be available, got cuda, but torch finds no GPU: use cpu"):
        chosen_device("cuda")


def test_each_process_of_torchrun_has_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen_device("cuda") == torch.device("cuda")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert chosen_device("auto") == torch.device("cuda", 1)
    assert chosen_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ArgumentError, match="processes must be at most that of GPUs, 2, got process 3 on this machine"):
        chosen_device("cuda")


def test_a_cpu_is_named_with_its_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert device_name(torch.device("cpu")) == "CPU, 1 thread"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert device_name(torch.device("cpu")) == "CPU, 2 threads"
