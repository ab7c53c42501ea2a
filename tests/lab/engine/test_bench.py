"""The arithmetic of the benchmark, and that each of its loops trains; none of it depends on how long things take."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from snapens.errors import ArgumentError, NonFiniteError
from snapens.lab import nets
from snapens.lab.engine import bench, flops
from snapens.lab.nets.dense.densenet import DenseNet
from snapens.lab.recipe import Settings


def recipe(**changes):
    return Settings(
        **{"network": "small", "dataset": "arrays", "epochs": 2, "cycles": 1, "batch": 8} | changes
    ).recipe()


RECIPE = recipe()


@pytest.fixture
def root(tmp_path):
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", x_train=x[:32], y_train=np.arange(32) % 4, x_test=x[32:], y_test=np.arange(8) % 4)
    return tmp_path / "tiny.npz"


@pytest.fixture
def clock(monkeypatch):
    """A clock that ticks a second whenever it is read."""
    time = SimpleNamespace(now=0.0)

    def monotonic():
        time.now += 1
        return time.now

    monkeypatch.setattr(bench, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(bench, "_WARM_UP_SECONDS", 2.0)
    return time


def test_the_stopwatch_counts_from_the_end_of_the_warm_up(clock):
    watch = bench._Stopwatch("cpu", seconds=5.0)  # begun at 1
    assert not watch.stops(100)  # 2
    assert not watch.stops(200)  # 3: the warm-up is over; started at 4
    assert not watch.stops(300)  # 5
    while not watch.stops(1200):  # first at or after 9, and read once more for the end
        pass
    assert watch.images_per_second == pytest.approx((1200 - 200) / (clock.now - 4))


def test_a_plain_loop_trains_with_the_better_number_of_workers(root, clock, monkeypatch):
    loader, asked = bench._loader, []

    def slower_with_two(given, images, workers):
        asked.append(workers)
        clock.now += 100 if workers == 2 else 0
        return loader(recipe(batch=4) if workers == 2 else given, images, 0)

    monkeypatch.setattr(bench, "_loader", slower_with_two)
    speed, workers = bench.plain_loop(RECIPE, root, "cpu", 3.0, [2, 4])
    assert speed > 0
    assert workers == 4
    assert asked == [2, 4, 4]


def test_a_run_that_fails_is_no_speed(root, clock):
    with pytest.raises(NonFiniteError):
        bench.engine_loop(recipe(lr=1e30), root, "cpu", 3.0, 1)


def test_image_files_are_not_timed(root, monkeypatch):
    files = SimpleNamespace(train=SimpleNamespace(pixels=object()))
    monkeypatch.setattr(bench.data, "load", lambda name, root: files)
    with pytest.raises(ArgumentError, match="dataset must be images in memory to be measured, got arrays"):
        bench.engine_loop(RECIPE, root, "cpu", 3.0, 1)


def test_the_engine_is_timed_alone_and_packed(root, clock, monkeypatch):
    packs = []
    prepare = bench.engine.prepare
    monkeypatch.setattr(
        bench.engine, "prepare", lambda jobs, *rest: (packs.append([r.seed for r, _ in jobs]), prepare(jobs, *rest))[1]
    )
    alone, packed = bench.engine_loop(RECIPE, root, "cpu", 3.0, 3)
    assert packs == [[0], [0, 1, 2]]
    assert alone > 0
    assert packed > 0


def test_every_loop_is_compared_and_a_missing_library_is_said(root, monkeypatch):
    calls = []

    def apart(processes, function, *arguments):
        calls.append((function.__name__, processes))
        if function is bench.ensemble_pytorch:
            monkeypatch.setitem(sys.modules, "torchensemble", None)
            function(*arguments)
        return [{"plain_loop": (100.0, 4), "engine_loop": (700.0, 900.0)}[function.__name__]] * processes

    monkeypatch.setattr(bench, "apart", apart)
    found = dict(bench.compare(RECIPE, root, "cpu", 8, 60.0))
    assert calls == [("plain_loop", 1), ("plain_loop", 4), ("ensemble_pytorch", 1), ("engine_loop", 1)]
    assert list(found.values()) == [100.0, 400.0, None, 700.0, 900.0]
    assert "Ensemble-PyTorch, not installed" in found


def test_a_densenet_on_a_gpu_is_timed_with_fused_blocks_and_without(monkeypatch):
    def apart(processes, function, recipe, root, *rest):
        if function is bench.limit:
            return [400.0]
        return [(200.0, 300.0) if rest[-1] else (20.0, 30.0)]

    monkeypatch.setattr(bench, "apart", apart)
    dense = recipe(network="densenet40")
    found = dict(bench.compare(dense, None, "cuda", 8, 60.0, loops=False))
    assert found == {
        "engine without fused blocks, one run": 20.0,
        "engine without fused blocks, a pack of 8": 30.0,
        "engine, one run": 200.0,
        "engine, a pack of 8": 300.0,
        "limit of the matrix products": 400.0,
    }
    assert len(dict(bench.compare(dense, None, "cpu", 8, 60.0, loops=False))) == 2
    assert len(dict(bench.compare(RECIPE, None, "cuda", 8, 60.0, loops=False))) == 3


def test_the_operations_of_an_image_are_those_of_all_matrix_products(root):
    images = bench._arrays(RECIPE, root)
    layers, sides = [], []

    def note(layer, inputs, output):
        layers.append(layer)
        sides.append(output[0, 0].numel() if output.ndim == 4 else 1)

    network = nets.of(RECIPE, 4, images.inputs)
    for module in network.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            module.register_forward_hook(note)
    network(torch.zeros(2, 1, 8, 8))
    forward = [2 * layer.weight.numel() * side for layer, side in zip(layers, sides, strict=True)]
    # backward: the same again for the weights, and for the inputs of all layers but the first
    assert flops.per_image(RECIPE, images) == 3 * sum(forward) - forward[0]


@pytest.mark.parametrize("fused", [True, False])
def test_the_kernels_are_off_in_a_process_without_fused_blocks(root, monkeypatch, fused):
    def prepare(*arguments):
        with torch.device("meta"):
            raise ArgumentError(f"accelerated: {nets.accelerate(nets.build('densenet40', classes=2))}")

    monkeypatch.setattr(DenseNet, "accelerable", True)
    monkeypatch.setattr(bench.engine, "prepare", prepare)
    with pytest.raises(ArgumentError, match=f"accelerated: {fused}"):
        bench.engine_loop(RECIPE, root, "cpu", 3.0, 1, fused)


def test_ensemble_pytorch_is_stopped_by_the_watch(root, clock, monkeypatch):
    class Classifier:
        def __init__(self, estimator, estimator_args, n_estimators, cuda):
            self.network = estimator(**estimator_args)

        def set_optimizer(self, name, **settings):
            pass

        def fit(self, loader, epochs, **settings):
            for _ in range(epochs):
                for x, _ in loader:
                    assert self.network(x).shape == (8, 4)

    monkeypatch.setitem(sys.modules, "torchensemble", SimpleNamespace(SnapshotEnsembleClassifier=Classifier))
    assert bench.ensemble_pytorch(RECIPE, root, "cpu", 3.0, 0) > 0


def test_images_are_cropped_from_zero_padding_and_mirrored(monkeypatch):
    pixels = np.full((1, 8, 8, 1), 200, np.uint8)
    pixels[0, :, 0] = 100
    images = SimpleNamespace(
        train=SimpleNamespace(pixels=pixels, labels=np.array([1])),
        classes=("a", "b"),
        augmentation="crop-mirror",
        size=8,
        normalisation=lambda: ((100.0,), (50.0,)),
    )
    draws = iter([[4, 4, 0], [4, 4, 1], [0, 4, 0]])
    monkeypatch.setattr(bench.torch, "randint", lambda *shape: SimpleNamespace(tolist=lambda: next(draws)))
    whole, mirrored, shifted = (bench._Augmented(images)[0][0][0].numpy() for _ in range(3))
    expected = np.full((8, 8), 2.0)
    expected[:, 0] = 0
    np.testing.assert_array_equal(whole, expected)
    np.testing.assert_array_equal(mirrored, expected[:, ::-1])
    np.testing.assert_array_equal(shifted, np.concatenate([np.zeros((4, 8)), expected[:4]]))
