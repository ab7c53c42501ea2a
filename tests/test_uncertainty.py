"""The prediction with its uncertainty, compared with loops in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from snapens import Combination, Ensemble, Snapshots
from snapens.errors import ArgumentError
from snapens.uncertainty import predict

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def members(make_net):
    store, networks = Snapshots(), []
    for step in (4, 8, 12):
        network = make_net().eval()
        with torch.no_grad():
            network.head.weight.mul_(60)  # confident enough that some examples exit
        store.commit(step, network.state_dict())
        networks.append(network)
    return store, networks


def entropy(p):
    return -(p * np.log(p)).sum()


def by_hand(networks, shares, threshold, temperature):
    """For each example: the mean, its entropy after the temperature, the mutual information, and the members used."""
    rows = []
    with torch.no_grad():
        p = np.stack([network.double()(X.double()).softmax(-1).numpy() for network in networks])
    for k in range(len(X)):
        total, weight, inner = np.zeros(p.shape[-1]), 0.0, 0.0
        for m in (2, 1, 0):
            total, weight = total + shares[m] * p[m, k], weight + shares[m]
            inner += shares[m] * entropy(p[m, k])
            mean = total / weight
            if mean.max() >= threshold:
                break
        tempered = mean ** (1 / temperature) / (mean ** (1 / temperature)).sum()
        rows.append((tempered, entropy(tempered), entropy(mean) - inner / weight, 3 - m))
    return [np.array(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("threshold", [None, 0.6])
@pytest.mark.parametrize(("shares", "temperature"), [((), 1.0), ((1.0, 3.0, 2.0), 1.7)])
def test_each_value_is_that_of_a_loop_over_examples_and_members(members, make_net, threshold, shares, temperature):
    store, networks = members
    chosen = tuple(("memory", step) for step in (4, 8, 12))
    ensemble = Ensemble(store, make_net(), combination=Combination(chosen, shares, temperature, threshold))
    found = predict(ensemble, X)
    expected = by_hand(networks, shares or (1.0,) * 3, threshold or 2.0, temperature)
    for value, wanted in zip(found, expected, strict=True):
        assert np.abs(value - wanted).max() < 1e-5
    assert set(found.used.tolist()) == ({3} if threshold is None else {1, 2, 3})
    assert np.abs(found.probabilities - ensemble.predict([X]).numpy()).max() < 1e-6


def test_one_example_has_the_uncertainty_that_it_has_in_a_batch(members, make_net):
    store, _ = members
    ensemble = Ensemble(store, make_net())
    ensemble.combination = replace(ensemble.combination, exit_threshold=0.6)
    whole = predict(ensemble, X)
    assert set(whole.used.tolist()) == {1, 2, 3}
    for k in range(len(X)):
        one = predict(ensemble, X[k : k + 1])
        assert one.used.tolist() == [whole.used[k]]
        for name in ("probabilities", "entropy", "mutual_information"):
            np.testing.assert_allclose(getattr(one, name)[0], getattr(whole, name)[k], atol=1e-6)


def test_one_member_has_no_mutual_information_and_preprocessing_comes_first(members, make_net):
    store, networks = members
    scale = nn.Linear(4, 4, bias=False)
    nn.init.eye_(scale.weight)
    with torch.no_grad():
        scale.weight.mul_(0.5)
        expected = networks[-1](X / 2).softmax(-1)
    found = predict(Ensemble(store, make_net(), last=1, preprocess=scale), X)
    assert np.abs(found.probabilities - expected.numpy()).max() < 1e-6
    assert found.mutual_information.max() < 1e-6


def test_the_activation_is_that_of_the_ensemble(members, make_net):
    ensemble = Ensemble(members[0], make_net(), activation=lambda scores: (scores / 5).softmax(-1))
    assert np.abs(predict(ensemble, X).probabilities - ensemble.predict([X]).numpy()).max() < 1e-6


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x.mul_(2.0))


def test_members_and_preprocessing_may_change_their_input_in_place():
    snapshots, given = Snapshots(), X.clone()
    for step in (4, 8):
        snapshots.commit(step, nn.Linear(4, 4).state_dict())
    expected = predict(Ensemble(snapshots, nn.Linear(4, 4), preprocess=_scaled(nn.Linear, 4.0)), X)
    found = predict(Ensemble(snapshots, Doubled(4, 4), preprocess=_scaled(Doubled, 1.0)), given)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, atol=1e-6)
    assert torch.equal(given, X)


def _scaled(kind, factor):
    layer = kind(4, 4, bias=False)
    layer.weight.data = factor * torch.eye(4)
    return layer


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (X, {"activation": None}, "probabilities must be at least 0 and sum to 1"),
        (X[:0], {}, "probabilities must be .* with at least one example"),
        ([X], {}, "inputs must be one batch as a tensor, got list: call predict once per batch"),
        (X[:, None], {}, r"model must return scores \(batch, classes\), got shape \(40, 1, 3\)"),
    ],
)
def test_only_probabilities_of_some_examples_have_an_uncertainty(inputs, options, message):
    snapshots = Snapshots()
    snapshots.commit(4, {"weight": torch.randn(3, 4), "bias": torch.zeros(3)})
    with pytest.raises(ArgumentError, match=message):
        predict(Ensemble(snapshots, nn.Linear(4, 3), **options), inputs)


def test_streamed_members_are_rejected(members, make_net):
    with pytest.raises(ArgumentError, match="resident must be True for separate members, got False"):
        predict(Ensemble(members[0], make_net(), resident=False), X)
