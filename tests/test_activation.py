"""Which outputs a softmax is applied to, and which are rejected."""

import copy
import warnings

import numpy as np
import pytest
import torch
from members import A, B, Shaped, X, mean_of, pair, trained
from torch import nn

from snapens import Combination, Ensemble, uncertainty
from snapens.activation import check_softmax
from snapens.errors import ArgumentError
from snapens.predict import Predictor

LABELS = torch.arange(10) % 3
USES = {
    "forward": lambda ensemble: ensemble(X),
    "predict": lambda ensemble: ensemble.predict([X]),
    "outputs": lambda ensemble: ensemble.outputs([(X, LABELS)]),
    "uncertainty": lambda ensemble: uncertainty.predict(ensemble, X),
    "predictor": lambda ensemble: Predictor(ensemble, X),
}
every_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


def softened(make_net):
    """The network with a softmax as its last layer."""

    class Softened(type(make_net())):
        def forward(self, x):
            return super().forward(x).softmax(-1)

    return Softened()


@every_use
def test_one_score_per_example_is_rejected(use):
    store, _ = trained(lambda: nn.Linear(4, 1))
    with pytest.raises(
        ArgumentError, match=r"two or more scores along dim=-1 .*\(\d+, 1\): pass activation=torch.sigmoid"
    ):
        use(Ensemble(store, nn.Linear(4, 1)))


class OneLogit(nn.Linear):
    """(batch, 4) -> (batch, 1)."""

    def __init__(self):
        super().__init__(4, 1)


class TwoScores(OneLogit):
    """What the documentation recommends for one logit z: the scores (0, z)."""

    def forward(self, x):
        return nn.functional.pad(super().forward(x), (1, 0))


@pytest.mark.parametrize("use", [USES["outputs"], USES["uncertainty"]])
@pytest.mark.parametrize("activation", [torch.sigmoid, None])
def test_one_value_per_example_is_rejected_where_each_class_needs_one(use, activation):
    store, _ = trained(OneLogit)
    with pytest.raises(
        ArgumentError, match=r"a score for each class, got one .*\(10, 1\): for one logit, .* subclass .*functional.pad"
    ) as found:
        use(Ensemble(store, OneLogit(), activation=activation))
    assert "for regression, evaluate ensemble.members" in str(found.value)


@pytest.mark.parametrize("use", [USES["outputs"], USES["uncertainty"]])
def test_one_logit_without_a_dimension_of_classes_has_the_same_remedy(use):
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    store, _ = trained(lambda: copy.deepcopy(model))
    with pytest.raises(ArgumentError, match=r"got shape \(10,\) .*; for one logit, .* subclass .*functional.pad"):
        use(Ensemble(store, model, activation=torch.sigmoid))


def test_a_subclass_with_two_scores_reads_the_snapshots_of_one_logit(tmp_path):
    store, networks = trained(OneLogit, path=tmp_path / "run")
    ensemble = Ensemble.load(tmp_path / "run", TwoScores())
    with torch.no_grad():
        each = torch.stack([network(X).sigmoid() for network in networks])
    expected = torch.cat([1 - each, each], -1)
    outputs = ensemble.outputs([(X, (LABELS == 0).float())])
    assert np.abs(outputs.probabilities - expected.numpy()).max() < 2e-3
    ensemble.combination = Combination(outputs.members, temperature=2.0)
    found = uncertainty.predict(ensemble, X).probabilities
    roots = expected.mean(0).sqrt()
    assert np.abs(found - (roots / roots.sum(-1, keepdim=True)).numpy()).max() < 1e-6
    store.close()


@pytest.mark.parametrize("use", [USES["forward"], USES["predict"]])
def test_scores_without_a_dimension_of_classes_are_rejected(use):
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    store, networks = trained(lambda: copy.deepcopy(model))
    with pytest.raises(ArgumentError, match=r"got shape \(10,\): .*None for regression"):
        use(Ensemble(store, model))
    with torch.no_grad():
        expected = torch.stack([network(X) for network in networks]).sigmoid().mean(0)
        torch.testing.assert_close(use(Ensemble(store, model, activation=torch.sigmoid)), expected)


def test_one_example_without_a_batch_is_rejected_with_its_remedy():
    store, _ = trained(lambda: nn.Linear(4, 3))
    ensemble = Ensemble(store, nn.Linear(4, 3))
    with pytest.raises(ArgumentError, match=r"got shape \(3,\): .*for one example, pass a batch of one, x\[None\]"):
        ensemble(X[0])
    torch.testing.assert_close(ensemble(X[0][None]), ensemble(X)[:1])


def test_the_output_of_a_mapping_that_a_softmax_does_not_fit_is_named():
    model = Shaped(A, lambda t: {"class": t.flatten(1), "age": t.flatten(1)[:, :1]})
    with pytest.raises(ArgumentError, match=r"got shape \(2, 1\) for 'age': pass activation="):
        Ensemble(pair(A, B), model)()


def test_the_output_of_a_mapping_that_has_probabilities_is_named():
    model = Shaped(A, lambda t: {"class": t, "attention": t.softmax(-1)})
    with pytest.raises(ArgumentError, match=r"sum to 1 along dim=-1 for 'attention': .* or name its scores 'logits'"):
        Ensemble(pair(A, B), model)()


@every_use
def test_a_model_that_already_ends_in_a_softmax_is_rejected(make_net, use):
    store, _ = trained(make_net)
    with pytest.raises(
        ArgumentError, match=r"activation must be None for a model that returns probabilities, got 'soft"
    ):
        use(Ensemble(store, softened(make_net)))


def test_the_probabilities_of_a_model_are_averaged_without_an_activation(make_net, resident):
    store, networks = trained(make_net)
    ensemble = Ensemble(store, softened(make_net), activation=None, resident=resident)
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks), atol=1e-6, rtol=0)
    found = ensemble.outputs([(X, LABELS)])
    assert np.abs(found.probabilities.mean(0) - mean_of(networks).numpy()).max() < 2e-3


@pytest.mark.parametrize("fitted", [{"exit_threshold": 0.6}, {"temperature": 1.5}])
def test_a_temperature_and_early_exit_work_with_the_probabilities_of_a_model(make_net, fitted):
    store, _ = trained(make_net)
    combination = Combination(newest=3, **fitted)
    expected = Ensemble(store, make_net(), combination=combination).predict([X])
    ensemble = Ensemble(store, softened(make_net), activation=None, combination=combination)
    torch.testing.assert_close(ensemble.predict([X]), expected)


def test_log_probabilities_are_scores_like_others(make_net):
    class Logarithms(type(make_net())):
        def forward(self, x):
            return super().forward(x).log_softmax(-1)

    store, networks = trained(make_net)
    found = Ensemble(store, Logarithms())(X)  # the softmax of a logarithm of probabilities gives the probabilities
    torch.testing.assert_close(found.double(), mean_of(networks), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_probabilities_are_recognised_in_every_precision_and_logits_are_not(dtype, classes):
    logits = 3 * torch.randn(64, classes, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ArgumentError, match="activation must be None"):
        check_softmax(logits.softmax(-1).to(dtype), -1)
    with pytest.raises(ArgumentError, match="activation must be None"):
        check_softmax({"a": logits, "b": logits.softmax(-1).to(dtype)}, -1)
    with pytest.raises(ArgumentError, match="activation must be None"):
        check_softmax(logits.T.softmax(0).to(dtype), 0)
    for other in (logits, logits.relu(), logits.log_softmax(-1), logits.sigmoid(), 1.1 * logits.softmax(-1)):
        assert check_softmax(other.to(dtype), -1)
    assert not check_softmax(torch.tensor([[0.25, 0.75]], dtype=dtype), -1)  # one row: by chance


def test_the_values_are_looked_at_once(make_net):
    store, _ = trained(make_net)
    ensemble = Ensemble(store, softened(make_net))
    assert ensemble(X[:1]).shape == (1, 3)  # one row is too few
    ensemble = Ensemble(pair(A, B), Shaped(A))
    ensemble()
    with torch.no_grad():
        for replica in ensemble._replicas:
            replica.value.copy_(A.softmax(-1))
    torch.testing.assert_close(ensemble(), A.softmax(-1).softmax(-1))


def test_the_first_call_may_compile_trace_export_or_map(make_net):
    store, networks = trained(make_net)
    expected = mean_of(networks)

    def first():
        return Ensemble(store, make_net())

    with torch.no_grad():
        compiled = torch.compile(first(), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(X).double(), expected, atol=1e-6, rtol=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            traced = torch.jit.trace(first(), X)
        torch.testing.assert_close(traced(X).double(), expected, atol=1e-6, rtol=0)
    exported = torch.export.export(first(), (X,)).module()
    torch.testing.assert_close(exported(X).double(), expected, atol=1e-6, rtol=0)
    mapped = torch.func.vmap(first())(X.reshape(5, 2, 4))
    torch.testing.assert_close(mapped.flatten(0, 1).double(), expected, atol=1e-6, rtol=0)
    x = X.clone().requires_grad_()
    first()(x)[:, 0].sum().backward()
    assert x.grad.abs().sum() > 0


def test_single_examples_can_be_mapped_and_have_gradients():
    store, networks = trained(lambda: nn.Linear(4, 3))
    ensemble = Ensemble(store, nn.Linear(4, 3))
    torch.testing.assert_close(torch.func.vmap(ensemble)(X).double(), mean_of(networks), atol=1e-6, rtol=0)
    found = torch.func.vmap(torch.func.jacrev(ensemble))(X)
    for x, gradients in zip(X, found, strict=True):
        whole = torch.autograd.functional.jacobian(ensemble, x[None])
        torch.testing.assert_close(gradients, whole[0, :, 0])
