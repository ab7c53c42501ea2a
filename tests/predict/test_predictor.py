"""Predictions on the CPU, and the logic of the captured graphs without a GPU."""

from types import SimpleNamespace

import pytest
import torch
from predict_reference import Centred, Residual, Shaped, Viewed, Waiting, ensemble_of, naive
from torch import nn

from snapens import Ensemble
from snapens.errors import ArgumentError
from snapens.predict import Predictor, captured, predictor

NOISE = torch.Generator().manual_seed(1)
X = torch.randn(37, 3, 8, 8, generator=NOISE) + 3 * torch.randn(37, 3, 1, 1, generator=NOISE)  # rows that differ


@pytest.fixture(params=[None, (3, 3), (0, 12)], ids=["eager", "captured", "captured, more later"])
def engine(request, monkeypatch):
    """Both ways to predict; without a GPU, a graph is the function that it would capture."""
    if request.param is None:
        return
    context = torch.no_grad
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, value in {
        "current_stream": lambda device: stream,
        "stream": lambda stream: context(),
        "graph_pool_handle": lambda: (0, 0),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(captured, "_stream", lambda device, number: stream)
    monkeypatch.setattr(captured.Captured, "_require_capturable", lambda self: None)
    monkeypatch.setattr(captured.Captured, "_capture", lambda self, compute, stream: SimpleNamespace(replay=compute))
    monkeypatch.setattr(
        predictor,
        "Eager",
        lambda *arguments: captured.Captured(*arguments, sizes=[1, 2, 4, 12, 16], together=request.param),
    )


def assert_predicts(ensemble, x, found):
    expected, used, _ = naive(ensemble, x)
    assert found.probabilities.dtype == torch.float32
    assert torch.allclose(found.probabilities.double(), expected, atol=2e-6)
    assert found.members_used.tolist() == used.tolist()


@pytest.mark.parametrize("build", [Residual, Shaped, Waiting, Viewed, Centred])
def test_the_prediction_is_that_of_the_ensemble(engine, build):
    ensemble = ensemble_of(build)
    found = Predictor(ensemble, X[:2], sizes=[16])(X)
    assert_predicts(ensemble, X, found)
    assert torch.allclose(found.probabilities, ensemble.predict([X]), atol=2e-6)


class Pixels(nn.Module):
    """Channels last, from 0 to 255, become channels first, around 0."""

    def forward(self, pixels):
        return (pixels.float() / 64 - 2).permute(0, 3, 1, 2)


def test_the_preprocessing_of_the_ensemble_comes_first(engine):
    ensemble = ensemble_of(Residual)
    ensemble.preprocess = Pixels()
    pixels = torch.randint(0, 256, (17, 8, 8, 3), generator=NOISE, dtype=torch.uint8)
    fast = Predictor(ensemble, pixels[:1], sizes=[16])
    ensemble.preprocess = None
    assert_predicts(ensemble, (pixels.float() / 64 - 2).permute(0, 3, 1, 2), fast(pixels))
    with pytest.raises(ArgumentError, match="inputs must be a tensor of shape"):
        fast("pixels")


@pytest.mark.parametrize("rows", [1, 2, 3, 12, 16, 17, 37])
@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 0.999])
def test_each_row_stops_where_a_naive_loop_stops(engine, rows, threshold):
    ensemble = ensemble_of(
        Residual, 5, sharpness=6.0, weights=(3, 2, 0, 1.5, 1), temperature=1.7, exit_threshold=threshold
    )
    predict = Predictor(ensemble, X[:2], sizes=[16])
    assert_predicts(ensemble, X[:rows], predict(X[:rows]))
    assert_predicts(ensemble, X[-rows:], predict(X[-rows:]))  # whatever the call before has left
    assert torch.allclose(predict(X[:rows]).probabilities, ensemble.predict([X[:rows]]), atol=2e-6)


def test_the_thresholds_of_these_tests_stop_rows_everywhere():
    ensemble = ensemble_of(Residual, 5, sharpness=6.0, weights=(3, 2, 0, 1.5, 1), exit_threshold=0.7)
    assert set(naive(ensemble, X)[1].tolist()) == {1, 2, 3, 4}


def test_one_member_is_enough(engine):
    ensemble = ensemble_of(Residual, 1, exit_threshold=0.99)
    assert_predicts(ensemble, X, Predictor(ensemble, X[:1], sizes=[16])(X))


def test_a_row_is_evaluated_only_until_it_stops():
    ensemble = ensemble_of(Residual, 5, sharpness=6.0, weights=(3, 2, 0, 1.5, 1), exit_threshold=0.7)
    predict, evaluated = Predictor(ensemble, X[:2]), []
    for network in predict._run._networks:
        network.register_forward_pre_hook(lambda network, inputs: evaluated.append(len(inputs[0])))
    used = predict(X).members_used
    assert evaluated == [37, *(int((used > k).sum()) for k in (1, 2, 3))]
    assert 0 < evaluated[3] < evaluated[2] < evaluated[1] < 37


def test_large_batches_are_cut_and_joined(engine):
    ensemble = ensemble_of(Residual, exit_threshold=0.5)
    whole, cut = (Predictor(ensemble, X[:2], sizes=sizes)(X) for sizes in ([16], [5, 3]))
    assert torch.allclose(whole.probabilities, cut.probabilities, atol=1e-6)
    assert torch.equal(whole.members_used, cut.members_used)


def test_the_ensemble_stays_as_it_is_and_later_changes_of_it_do_not_count():
    ensemble = ensemble_of(Residual)
    before, names = ensemble(X), [type(module).__name__ for module in ensemble.modules()]
    predict = Predictor(ensemble, X[:2])
    assert torch.equal(ensemble(X), before)
    assert [type(module).__name__ for module in ensemble.modules()] == names
    ensemble.last = 1
    assert torch.allclose(predict(X).probabilities, before, atol=2e-6)


def test_the_kernels_of_a_network_replace_folding():
    calls = []

    def accelerate(network):
        calls.append(network)
        return True

    ensemble = ensemble_of(Residual, 2)
    predict = Predictor(ensemble, X[:2], accelerate=accelerate)
    assert [*predict._run._networks] == calls
    assert not {*calls} & {*ensemble.members}
    assert_predicts(ensemble, X, predict(X))
    plain = Predictor(ensemble, X[:2], accelerate=lambda network: False)
    assert not any(
        isinstance(module, nn.BatchNorm2d) for network in plain._run._networks for module in network.modules()
    )


def test_integers_are_inputs_too(engine):
    class Words(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 5))

    ensemble, x = ensemble_of(Words), torch.randint(9, (7, 3))
    found = Predictor(ensemble, x[:1], sizes=[4])(x.to(torch.int32))
    assert torch.allclose(found.probabilities, ensemble(x), atol=2e-6)


@pytest.mark.parametrize("build", [Residual, Shaped])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_ensemble_in_another_precision_is_evaluated_in_float32(engine, build, dtype):
    ensemble, x = ensemble_of(build).to(dtype), X.to(dtype)
    found = Predictor(ensemble, x[:2], sizes=[16])(x)
    assert_predicts(ensemble, x, found)


def test_the_layout_of_the_example_does_not_matter(engine):
    rows = torch.randn(4, 17, generator=NOISE).t()  # not contiguous, and without channels
    ensemble = ensemble_of(lambda: nn.Sequential(nn.Linear(4, 5)))
    assert_predicts(ensemble, rows, Predictor(ensemble, rows, sizes=[16])(rows))
    viewed, last = ensemble_of(Viewed), X.to(memory_format=torch.channels_last)
    assert_predicts(viewed, X, Predictor(viewed, last, sizes=[16])(last))


def test_bfloat16_on_a_cpu_is_close():
    ensemble = ensemble_of(Residual)
    found = Predictor(ensemble, X[:2], dtype=torch.bfloat16)(X)
    assert found.probabilities.dtype == torch.float32
    assert 0 < (found.probabilities - ensemble(X)).abs().max() < 0.02


def test_predictors_work_inside_inference_mode_and_autocast():
    ensemble = ensemble_of(Residual, exit_threshold=0.5)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        found = Predictor(ensemble, X[:2])(X)
    assert_predicts(ensemble, X, found)


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return {"a": self.head(x), "b": self.head(x)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ensemble": nn.Linear(1, 1)}, "ensemble must be an Ensemble, got Linear"),
        ({"example": {"x": X}}, "example must be one tensor .* got dict"),
        ({"example": X[:0]}, r"example must be one tensor .* at least one row, got shape \(0, 3, 8, 8\)"),
        ({"dtype": torch.float16}, "dtype must be one of torch.float32, torch.bfloat16 on cpu, got torch.float16"),
        ({"sizes": [0, 4]}, "sizes must be a whole number of at least 1, got 0"),
        ({"sizes": []}, "sizes must contain at least one batch size, got none"),
    ],
)
def test_wrong_arguments_are_rejected(change, message):
    arguments = {"ensemble": ensemble_of(Residual), "example": X[:2]} | change
    with pytest.raises(ArgumentError, match=message):
        Predictor(**arguments)


def test_a_streamed_ensemble_is_rejected():
    ensemble = ensemble_of(Residual)
    streamed = Ensemble([*ensemble._runs.values()], Residual(), resident=False)
    with pytest.raises(
        ArgumentError, match="must have resident members, got resident=False: build it with resident=True"
    ):
        Predictor(streamed, X[:2])


@pytest.mark.parametrize("options", [{"activation": None}, {"dim": 0}])
def test_other_activations_are_rejected(options):
    stores = [*ensemble_of(Residual)._runs.values()]
    with pytest.raises(ArgumentError, match=r"must have activation='softmax' and dim=-1, got .*: use"):
        Predictor(Ensemble(stores, Residual(), **options), X[:2])


def test_log_probabilities_are_rejected():
    stores = [*ensemble_of(Residual)._runs.values()]
    with pytest.raises(
        ArgumentError, match=r"must have output='probabilities', got 'log_probabilities': build another"
    ):
        Predictor(Ensemble(stores, Residual(), output="log_probabilities"), X[:2])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": X}, r"inputs must be a tensor of shape \(batch, 3, 8, 8\).* got dict: use Ensemble.predict"),
        (X[0], r"got shape \(3, 8, 8\)"),
        (X[..., :7], r"got shape \(37, 3, 8, 7\)"),
        (X.long(), "a dtype like torch.float32, got 37 rows of torch.int64"),
        (X[:0], "at least one row, .* got 0 rows"),
    ],
)
def test_inputs_unlike_the_example_are_rejected(inputs, message):
    predict = Predictor(ensemble_of(Residual), X[:2])
    with pytest.raises(ArgumentError, match=message):
        predict(inputs)


def test_a_model_with_several_outputs_is_rejected():
    x = torch.randn(2, 4)
    with pytest.raises(
        ArgumentError, match=r"must return scores \(batch, classes\), got a mapping of 'a', 'b': use Ensemble.predict"
    ):
        Predictor(ensemble_of(Several), x)(x)
