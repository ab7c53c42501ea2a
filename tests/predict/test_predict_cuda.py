"""Prediction on a GPU against the naive prediction in float64; skipped where there is no GPU."""

import gc
from copy import deepcopy

import pytest
import torch
from predict_reference import Residual, Shaped, Viewed, Waiting, ensemble_of, naive
from torch import nn

from snapens.lab import nets
from snapens.lab.nets.dense.densenet import DenseNet, densenet
from snapens.lab.nets.resnet import cifar
from snapens.predict import Predictor, fusing

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning"),
]

TOLERANCE = {torch.bfloat16: 0.05, torch.float32: 1e-4}
EXIT = {"weights": (3, 2, 0, 1.5, 1), "temperature": 1.4, "exit_threshold": 0.7, "sharpness": 6.0}


@pytest.fixture(autouse=True)
def _without_tf32():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def residual():
    return cifar(blocks_per_stage=2, classes=5)


def dense():
    return densenet(depth=10, growth=12, classes=5)


def images(rows, side=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    noise, colour = (torch.randn(rows, 3, *shape, generator=generator) for shape in ((side, side), (1, 1)))
    return (noise + 3 * colour).cuda()


def assert_predicts(ensemble, x, found, dtype=torch.bfloat16):
    """Equal within rounding; rows of a confidence near the threshold may stop elsewhere."""
    tolerance = TOLERANCE[dtype]
    expected, used, margins = naive(ensemble, x)
    sure = margins > tolerance
    assert found.probabilities.dtype == torch.float32
    assert found.probabilities.shape == expected.shape
    assert sure.float().mean() > 0.5
    assert found.members_used.cpu()[sure].tolist() == used[sure].tolist()
    difference = (found.probabilities.cpu().double() - expected)[sure].abs().max()
    assert difference < tolerance, difference


NETWORKS = {
    "residual": (residual, None),
    "dense": (dense, nets.accelerate),
    "dense without kernels": (dense, None),
    "branches on a shape": (Shaped, None),
    "needs contiguous maps": (Viewed, None),
    "no folding": (Residual, lambda network: True),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", NETWORKS)
def test_captured_members_predict_what_the_ensemble_predicts(name, dtype):
    build, accelerate = NETWORKS[name]
    ensemble = ensemble_of(build, 3, "cuda", noise=0.2)
    predict = Predictor(ensemble, images(2), dtype=dtype, sizes=(1, 4, 16), together=(4, 4), accelerate=accelerate)
    assert predict.captured
    for rows in (1, 3, 16, 39):
        x = images(rows, seed=rows)
        found = predict(x)
        assert found.probabilities.is_cuda
        assert_predicts(ensemble, x, found, dtype)
        assert (found.probabilities - ensemble(x)).abs().max() < TOLERANCE[dtype]
        assert found.members_used.tolist() == [3] * rows


def test_the_kernels_of_densenet_are_captured():
    predict = Predictor(ensemble_of(dense, 2, "cuda"), images(2), sizes=(4,), accelerate=nets.accelerate)
    assert all(type(network) is DenseNet and network._accelerated for network in predict._run._networks)


def test_what_follows_a_convolution_is_one_kernel():
    predict = Predictor(ensemble_of(residual, 2, "cuda"), images(2), sizes=(4,))
    kinds = {type(module) for network in predict._run._networks for module in network.modules()}
    assert fusing.Epilogue in kinds
    assert not kinds & {nn.BatchNorm2d, nn.ReLU}


def epilogue_and_reference(layer, shape, residual_shape, dtype):
    """The prepared layer on the GPU, its arguments, and relu(layer(x) + residual) in float64."""
    torch.manual_seed(0)
    layer = layer.cuda()
    x = torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=torch.channels_last)
    residual = None if residual_shape is None else torch.randn(residual_shape, device="cuda").to(dtype)
    with torch.no_grad():
        y = deepcopy(layer).double()(x.double())
        expected = torch.relu(y if residual is None else y + residual.double())
    fused = fusing.Epilogue(layer)
    layer.to(dtype)
    return fused, (x, residual), expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("layer", "shape", "residual"),
    [
        (nn.Conv2d(16, 16, 3, padding=1), (4, 16, 8, 8), None),
        (nn.Conv2d(16, 16, 3, padding=1), (4, 16, 8, 8), (4, 16, 8, 8)),
        (nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), (4, 16, 9, 9), (4, 32, 5, 5)),
        (nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=2), (4, 16, 8, 8), (4, 16, 8, 8)),
        (nn.Conv2d(3, 7, 1), (2, 3, 5, 5), (2, 7, 5, 5)),
        (nn.Conv2d(16, 16, 3, padding="same"), (4, 16, 8, 8), (4, 16, 8, 8)),
        (nn.Conv2d(16, 16, 1), (4, 16, 1, 1), (4, 16, 8, 8)),  # the convolution's result is broadcast
        (nn.Conv2d(16, 16, 1), (4, 16, 8, 8), (1, 16, 1, 1)),
    ],
)
def test_a_convolution_with_what_follows_it_computes_the_formula(layer, shape, residual, dtype):
    fused, arguments, expected = epilogue_and_reference(deepcopy(layer), shape, residual, dtype)
    with torch.no_grad(), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        found = fused(*arguments)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), expected, rtol=1e-4 if dtype == torch.float32 else 2e-2, atol=2e-2)


def test_cudnn_computes_a_convolution_with_what_follows_it(monkeypatch):
    fused, arguments, expected = epilogue_and_reference(
        nn.Conv2d(16, 16, 3, padding=1), (4, 16, 8, 8), (4, 16, 8, 8), torch.bfloat16
    )
    kernel = []
    monkeypatch.setattr(fusing, "affine_relu", lambda *_, **__: kernel.append(1))
    with torch.no_grad():
        assert torch.allclose(fused(*arguments).double(), expected, rtol=2e-2, atol=2e-2)
    assert not kernel


@pytest.mark.parametrize("residual", [None, (4, 16, 8, 8)])
def test_cudnn_keeps_nan_as_the_kernel_does(residual):
    fused, (x, other), _ = epilogue_and_reference(nn.Conv2d(16, 16, 1), (4, 16, 8, 8), residual, torch.bfloat16)
    x[1, 2, 3, 4] = torch.nan
    with torch.no_grad():
        found = fused(x, other)
    assert found[1, :, 3, 4].isnan().all()
    assert found.isnan().sum() == 16


def test_the_kernel_takes_over_where_cudnn_has_no_such_operation(monkeypatch):
    fused, arguments, expected = epilogue_and_reference(
        nn.Conv2d(16, 16, 3, padding=1), (4, 16, 8, 8), None, torch.bfloat16
    )

    def missing(*_):
        raise RuntimeError("unable to find an engine")

    monkeypatch.setattr(torch, "cudnn_convolution_relu", missing)
    with torch.no_grad():
        assert torch.allclose(fused(*arguments).double(), expected, rtol=2e-2, atol=2e-2)


def test_a_network_that_waits_for_the_device_runs_without_a_graph(caplog):
    ensemble, x = ensemble_of(Waiting, 5, "cuda", **EXIT), images(40)
    predict = Predictor(ensemble, x[:2], sizes=(4, 16))
    assert not predict.captured
    assert "cannot be captured as CUDA graphs" in caplog.text
    assert torch.cuda.get_sync_debug_mode() == 0
    assert_predicts(ensemble, x, predict(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("together", [(1, 1), (4, 4), (1, 64), (9999, 9999)])
def test_rows_stop_early_in_every_batch_size_and_order_of_calls(dtype, together):
    ensemble = ensemble_of(Residual, 5, "cuda", **EXIT)
    sizes = (1, 2, 4, 16, 64, 256, 512, 1024)
    predict = Predictor(ensemble, images(2), dtype=dtype, sizes=sizes, together=together)
    for rows in (1024 + 7, 1, 3, 200, 1, 1024 + 7):
        x = images(rows, seed=rows)
        assert_predicts(ensemble, x, predict(x), dtype)
    assert set(naive(ensemble, x)[1].tolist()) == {1, 2, 3, 4}


def test_the_default_sizes_work_with_exit():
    ensemble, x = ensemble_of(Residual, 5, "cuda", **EXIT), images(1500)
    predict = Predictor(ensemble, x[:2])
    for rows in (33, 100, 700, 1500):
        assert_predicts(ensemble, x[:rows], predict(x[:rows]))


def test_inputs_may_be_anywhere_and_of_any_float_and_layout():
    ensemble, x = ensemble_of(Residual, 2, "cuda"), images(10)
    predict = Predictor(ensemble, x[:1].cpu(), sizes=(4, 16))
    expected = predict(x).probabilities
    for other in (x.cpu(), x.cpu().pin_memory(), x.double(), x.contiguous(memory_format=torch.channels_last)):
        assert torch.equal(predict(other).probabilities, expected)
    assert torch.equal(predict(images(20)[::2]).probabilities, predict(images(20)[::2].contiguous()).probabilities)


def test_two_predictors_do_not_disturb_each_other():
    first, second = (ensemble_of(build, 5, "cuda", **EXIT) for build in (Residual, Shaped))
    x, y = images(100, seed=1), images(90, seed=2)
    one, two = (Predictor(ensemble, x[:2], sizes=(8, 64, 128), together=(8, 8)) for ensemble in (first, second))
    for _ in range(2):
        found, other = one(x), two(y)
        assert_predicts(first, x, found)
        assert_predicts(second, y, other)
    del one
    gc.collect()
    torch.cuda.empty_cache()
    torch.full((1 << 26,), torch.nan, device="cuda")
    assert_predicts(second, y, two(y))


def test_an_earlier_prediction_stays_when_another_is_made():
    predict = Predictor(ensemble_of(Residual, 2, "cuda"), images(2), sizes=(16,))
    found = predict(images(16))
    before = found.probabilities.clone()
    predict(images(16, seed=5))
    assert torch.equal(found.probabilities, before)


def test_other_streams_may_replay():
    ensemble, x = ensemble_of(Residual, 5, "cuda", **EXIT), images(100)
    predict = Predictor(ensemble, x[:2], sizes=(8, 64, 128), together=(8, 8))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        found = predict(x)
        torch.cuda.current_stream().synchronize()
    assert_predicts(ensemble, x, found)


def test_a_small_batch_and_a_prediction_without_exit_never_wait_for_the_device():
    x = images(64)
    small = Predictor(ensemble_of(Residual, 5, "cuda", **EXIT), x[:2], sizes=(8, 64), together=(8, 8))
    full = Predictor(ensemble_of(Residual, 5, "cuda"), x[:2], sizes=(8, 64), together=(8, 8))
    torch.cuda.set_sync_debug_mode("error")
    try:
        small(x[:5])
        full(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def reserved(sizes):
    """The memory that a predictor with these sizes keeps."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    ensemble = ensemble_of(lambda: Residual(width=64), 4, "cuda", exit_threshold=0.9)
    predict = Predictor(ensemble, images(2, side=32), sizes=sizes, together=(8, 8))
    predict(images(256, side=32))
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() - before


def test_more_sizes_need_hardly_more_memory():
    reserved((256,))  # the workspaces of cuBLAS stay
    few, many = reserved((256,)), reserved((32, 64, 96, 128, 160, 192, 224, 256))
    assert few > 3e7
    assert many < 1.3 * few + 2e7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "channels", "side"), [(1, 16, 32), (3, 12, 5), (64, 160, 8), (2, 1, 3), (5, 7, 1)])
def test_the_kernel_computes_the_formula_on_the_device(dtype, rows, channels, side):
    x, residual = torch.randn(2, rows, channels, side, side, device="cuda").to(dtype)
    x = x.contiguous(memory_format=torch.channels_last)
    scale, shift = torch.randn(2, channels, device="cuda")
    assert fusing._can_run(x)
    for a, b in ((None, None), (scale, None), (None, residual), (scale, residual)):
        y = x.double() * (1 if a is None else a.view(1, -1, 1, 1)) + shift.view(1, -1, 1, 1)
        expected = torch.relu(y if b is None else y + b.double())
        found = fusing.affine_relu(x, a, shift, b).double()
        assert torch.allclose(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)
