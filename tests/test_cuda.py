"""What only a GPU can show; skipped where there is none."""

import pytest
import torch
from torch import nn

from snapens import CyclicCosine, Ensemble, SnapshotEnsembler, Snapshots
from snapens.weights import tensors

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),  # torch.compile's
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning"),
]


class Conv(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 5))


def trained(model, steps=4, store=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device="cuda"), momentum=0.9, fused=True)
    ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(steps, 2), store=store, **options)
    for _ in range(steps):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(8, 3, 8, 8, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ensembler.step()
    return ensembler


@pytest.mark.parametrize("path", [None, "run"])
def test_channels_last_and_compiled_models_are_kept_and_ensembled_on_the_device(tmp_path, path):
    plain = Conv().to("cuda", memory_format=torch.channels_last)
    ensembler = trained(torch.compile(plain), store=path and tmp_path / path)
    kept = ensembler.snapshots.load(4)
    assert all(torch.equal(kept[name], value.cpu()) for name, value in plain.state_dict().items())
    x = torch.randn(8, 3, 8, 8, device="cuda")
    resident, streamed = ensembler.ensemble(), ensembler.ensemble(resident=False)
    assert resident(x).device.type == "cuda"
    assert torch.equal(resident(x), streamed(x))
    assert torch.allclose(resident.predict(x.cpu().split(3)), resident(x).cpu(), atol=1e-6)
    assert torch.allclose(ensembler.ensemble(last=1)(x), plain.eval()(x).softmax(-1), atol=1e-6)


def test_the_first_call_of_an_ensemble_can_be_captured_and_later_calls_never_wait_for_the_device():
    ensembler = trained(Conv().cuda())
    x = torch.randn(8, 3, 8, 8, device="cuda")
    ensemble, graph = ensembler.ensemble(), torch.cuda.CUDAGraph()
    with torch.no_grad():
        expected = ensembler.ensemble()(x)  # initialises the libraries
        with torch.cuda.graph(graph):
            captured = ensemble(x)
        graph.replay()
        assert torch.allclose(captured, expected, atol=1e-6)
        ensemble(x)
        torch.cuda.set_sync_debug_mode("error")
        try:
            ensemble(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_folder_written_on_the_gpu_is_read_on_the_cpu_and_back(tmp_path):
    ensembler = trained(Conv().cuda(), store=tmp_path / "run")
    x = torch.randn(8, 3, 8, 8)
    on_cpu = Ensemble.load(tmp_path / "run", Conv())(x)
    on_gpu = Ensemble.load(tmp_path / "run", Conv(), device="cuda")(x.cuda())
    assert torch.allclose(on_cpu, on_gpu.cpu(), atol=1e-2)  # TF32 convolutions
    assert ensembler.snapshots.steps == (2, 4)


def test_between_minima_a_step_never_waits_for_the_device():
    model = Conv().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device="cuda"), fused=True)
    ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(1000, 2))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(400):
            ensembler.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert optimizer.param_groups[0]["lr"].item() == pytest.approx(0.1 * CyclicCosine(1000, 2)(400), rel=1e-6)


def test_a_captured_graph_sees_each_new_rate():
    weight = nn.Parameter(torch.zeros(1, device="cuda"))
    model = nn.Module()
    model.weight = weight
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.1, device="cuda"), fused=True)
    schedule = CyclicCosine(8, 2)
    ensembler = SnapshotEnsembler(model, optimizer, schedule)
    weight.grad = torch.ones_like(weight)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        optimizer.step()
    torch.cuda.synchronize()
    with torch.no_grad():
        weight.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(8):
        graph.replay()
        ensembler.step()
    expected = -0.1 * sum(schedule(step) for step in range(8))
    assert weight.item() == pytest.approx(expected, rel=1e-5)
    assert ensembler.snapshots.load(4)["weight"].item() == pytest.approx(expected / 2, rel=1e-5)


def test_a_streamed_ensemble_of_ten_adds_about_one_model_to_the_devices_peak(tmp_path):
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(26))).cuda().eval()
    size = sum(tensor.nbytes for tensor in tensors(model).values())
    store = Snapshots(tmp_path)
    store.open_to_write()
    for step in range(1, 11):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1e-3)
        store.commit(step, tensors(model))
    x = torch.randn(8, 1024)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    Ensemble.load(tmp_path, model, resident=False).predict([x])
    assert torch.cuda.max_memory_allocated() - before <= 1.3 * size


def test_a_grad_scalers_skipped_update_counts():
    model = Conv().cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, fused=True), torch.amp.GradScaler("cuda")
    ensembler = SnapshotEnsembler(model, optimizer, CyclicCosine(4, 2))
    for step in range(4):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(8, 3, 8, 8, device="cuda")).square().mean() * (torch.inf if step == 0 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        ensembler.step()
    assert ensembler.snapshots.steps == (2, 4)
