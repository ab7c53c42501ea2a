"""Which inputs, labels and scores an ensemble finds in a batch and in the output of a model."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from members import A, B, Shaped, X, mean_of, pair, trained
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from snapens import Combination, Ensemble, uncertainty
from snapens.batches import arguments
from snapens.errors import ArgumentError
from snapens.predict import Predictor


@dataclass
class ModelOutput:
    logits: torch.Tensor
    loss: None = None


@pytest.mark.parametrize("wrap", [ModelOutput, lambda t: {"logits": t, "hidden": "anything"}])
def test_logits_are_found_in_objects_and_mappings(wrap):
    expected = (A.softmax(-1) + B.softmax(-1)) / 2
    assert torch.allclose(Ensemble(pair(A, B), Shaped(A, wrap))(), expected)


def test_heads_beside_logits_are_left_out_and_a_head_with_this_name_has_outputs():
    a, b = torch.randn(6, 3), torch.randn(6, 3)
    ensemble = Ensemble(pair(a, b), Shaped(a, lambda t: {"logits": t, "other": 2 * t}))
    expected = (a.softmax(-1) + b.softmax(-1)) / 2
    torch.testing.assert_close(ensemble(), expected)
    found = ensemble.outputs([torch.arange(6) % 3], inputs=lambda batch: (), targets=lambda batch: batch)
    assert np.abs(found.probabilities.mean(0) - expected.numpy()).max() < 2e-3


def test_keyword_arguments_reach_the_members():
    expected = ((2 * A).softmax(-1) + (2 * B).softmax(-1)) / 2
    assert torch.allclose(Ensemble(pair(A, B), Shaped(A))(scale=2.0), expected)


def test_an_output_without_scores_is_rejected():
    with pytest.raises(ArgumentError, match=r"a mapping of tensors or something with \.logits, got tuple"):
        Ensemble(pair(A, B), Shaped(A, lambda t: (t, t)))()


def test_a_loss_beside_the_outputs_of_a_mapping_is_left_out(resident):
    model = Shaped(A, lambda t: {"head": t, "loss": t.mean()})
    expected = (A.softmax(-1) + B.softmax(-1)) / 2
    ensemble = Ensemble(pair(A, B), model, resident=resident)
    for found in (ensemble(), ensemble.predict([()], inputs=lambda batch: batch)):
        assert found.keys() == {"head"}
        torch.testing.assert_close(found["head"], expected)
    with pytest.raises(ArgumentError, match=r"a mapping of tensors or something with \.logits, got dict"):
        Ensemble(pair(A, B), Shaped(A, lambda t: {"loss": t.mean()}))()


def test_one_number_per_batch_cannot_be_joined():
    ensemble = Ensemble(pair(A, B), Shaped(A, torch.mean), activation=None)
    torch.testing.assert_close(ensemble(), (A.mean() + B.mean()) / 2)
    with pytest.raises(ArgumentError, match="model must return one row per example, got one number per batch"):
        ensemble.predict([X])


def test_predict_takes_mappings_as_keywords_and_tuples_as_arguments():
    ensemble = Ensemble(pair(A, B), Shaped(A))
    assert torch.equal(ensemble.predict([{"scale": 2.0}]), ensemble(scale=2.0))
    assert torch.equal(ensemble.predict([3.0], inputs=lambda batch: {"scale": batch}), ensemble(scale=3.0))
    assert torch.equal(ensemble.predict([3.0], inputs=lambda batch: (batch,)), ensemble(3.0))


class Batch(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


class Inputs(NamedTuple):
    left: torch.Tensor
    to: torch.Tensor  # not the method that moves a tensor


class Product(nn.Module):
    """Returns its only weight, multiplied by two arguments."""

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.zeros(3))

    def forward(self, left, right):
        return self.value * left * right


def test_the_first_field_of_a_named_tuple_is_the_input(make_net):
    store, _ = trained(make_net)
    ensemble = Ensemble(store, make_net())
    examples = [Batch(x, torch.tensor(0)) for x in X]
    loader = DataLoader(examples, 4)
    assert isinstance(next(iter(loader)), Batch)
    assert torch.allclose(ensemble.predict(loader), ensemble(X), atol=1e-7)
    assert torch.allclose(ensemble.predict([Batch(X, torch.zeros(10))]), ensemble(X), atol=1e-7)


def test_a_named_tuple_of_inputs_is_several_arguments():
    ensemble = Ensemble(pair(torch.ones(3), torch.zeros(3)), Product(), activation=None)
    inputs = Inputs(torch.full((2, 1), 4.0), torch.full((2, 1), 3.0))
    expected = torch.full((2, 3), 6.0)  # half of 1 * 4 * 3
    assert torch.equal(ensemble.predict([(inputs, "label")]), expected)
    assert torch.equal(ensemble.predict([Batch(inputs, "label")]), expected)
    assert torch.equal(ensemble.predict([inputs], inputs=lambda batch: batch), expected)


def test_moving_to_a_device_keeps_the_type_of_a_named_tuple():
    moved = Batch(Inputs(torch.ones(1), torch.ones(1)), [torch.ones(1), "text"])
    (found,), _ = arguments([moved], torch.device("meta"))
    (found,) = found
    assert type(found) is Batch
    assert type(found.image) is Inputs
    assert type(found.label) is list
    assert {found.image.left.device.type, found.image.to.device.type, found.label[0].device.type} == {"meta"}


def test_predict_reports_its_progress(make_net):
    store, _ = trained(make_net)
    seen = []
    Ensemble(store, make_net(), last=2, resident=False).predict([X, X], progress=lambda *args: seen.append(args))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]  # two members read two batches each


def test_progress_of_a_loader_without_a_length_has_no_total(make_net):
    class Stream(IterableDataset):
        def __iter__(self):
            yield from X

    store, _ = trained(make_net, steps=(4,))
    seen = []
    Ensemble(store, make_net()).predict(DataLoader(Stream(), 5), progress=lambda *args: seen.append(args))
    assert seen == [(1, None), (2, None)]


def test_packed_sequences_are_one_input():
    class Lengths(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.zeros(3))

        def forward(self, packed):
            assert isinstance(packed, PackedSequence)
            return self.value.expand(len(packed.sorted_indices), 3)

    packed = pack_sequence([torch.ones(3, 1), torch.ones(5, 1)], enforce_sorted=False)
    assert Ensemble(pair(torch.ones(3), torch.zeros(3)), Lengths()).predict([packed]).shape == (2, 3)


def test_inputs_and_targets_are_taken_from_a_batch_as_the_caller_says(make_net):
    store, _ = trained(make_net)
    ensemble, labels = Ensemble(store, make_net()), torch.tensor([2, 0])
    expected = ensemble.outputs([(X[:2], labels)]).log_probabilities
    for batch, options in (
        ([X[:2], labels], {}),
        ({"x": X[:2], "y": labels}, {"inputs": lambda b: b["x"], "targets": lambda b: b["y"]}),
        ({"input": X[:2], "labels": [2, 0]}, {"inputs": lambda b: b["input"]}),
    ):
        found = ensemble.outputs([batch], **options)
        assert np.array_equal(found.log_probabilities, expected)
        assert found.labels.tolist() == [2, 0]
    for batch in (X[:2], (X[:2],), {"input": X[:2]}):
        with pytest.raises(ArgumentError, match=r"batch must contain labels, got .*: pass targets="):
            ensemble.outputs([batch], inputs=lambda b: X[:2])


def test_labels_with_fractions_are_rejected(make_net):
    store, _ = trained(make_net)
    with pytest.raises(ArgumentError, match=r"targets must be class indices, got torch\.float32 with fractions"):
        Ensemble(store, make_net()).outputs([(X, torch.full((10,), 0.7))])


class Shrinking:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        yield from self.batches
        self.batches = self.batches[1:]


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (iter([X]), "got list_iterator: pass a DataLoader or a list, or use resident=True"),
        ((x for x in [X]), "got generator"),
        (DataLoader(TensorDataset(X), batch_sampler=BatchSampler(RandomSampler(X), 5, False)), "got a RandomSampler"),
        (Shrinking([X[:5], X[:1], X[:5]]), "the same batches for every member"),
        (Shrinking([X, X]), "the same batches for every member"),
    ],
)
def test_a_loader_that_would_mix_up_the_examples_of_streamed_members_is_rejected(make_net, loader, words):
    store, _ = trained(make_net)
    with pytest.raises(ArgumentError, match=words):
        Ensemble(store, make_net(), resident=False).predict(loader)


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (X, r"got Tensor: pass a DataLoader or a list, \[x\] for one batch"),
        (TensorDataset(X), "got TensorDataset: pass a DataLoader"),
        ([], "at least one batch, got none: pass a list or a DataLoader, because a generator can be read only once"),
    ],
)
def test_a_loader_without_batches_is_rejected(make_net, resident, loader, words):
    store, _ = trained(make_net)
    with pytest.raises(ArgumentError, match=words):
        Ensemble(store, make_net(), resident=resident).predict(loader)


def test_an_iterator_that_was_already_read_is_rejected(make_net):
    store, _ = trained(make_net)
    with pytest.raises(ArgumentError, match=r"at least one batch, got none: .* a generator can be read only once"):
        Ensemble(store, make_net()).predict(iter(()))


class Reshuffled:
    """A loader of its own kind, which shuffles the examples in each pass."""

    def __init__(self, orders):
        self.orders = orders

    def __iter__(self):
        order = self.orders.pop(0)
        for part in (order[:5], order[5:]):
            yield X[part], torch.arange(10)[part] % 3


def test_outputs_reject_a_loader_that_shuffles_in_each_pass_if_members_are_streamed(make_net):
    store, networks = trained(make_net)
    orders = [list(range(10)), [3, 9, 1, 7, 5, 0, 2, 4, 6, 8]]
    with pytest.raises(
        ArgumentError, match=r"same order for every member .* got other labels in batch 1: do not shuffle"
    ):
        Ensemble(store, make_net(), resident=False).outputs(Reshuffled([*orders, orders[1]]))
    found = Ensemble(store, make_net()).outputs(Reshuffled(orders[1:]))
    assert found.labels.tolist() == [k % 3 for k in orders[1]]
    assert np.abs(found.probabilities.mean(0) - mean_of(networks)[orders[1]].numpy()).max() < 2e-3


class Decoded(Dataset):
    """Counts how often an example is read."""

    reads = 0

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        self.reads += 1
        return X[index], index


@pytest.mark.parametrize("threshold", [None, 0.45])
def test_resident_members_read_and_prepare_each_batch_once(make_net, threshold):
    store, networks = trained(make_net)
    calls, counted, data = [], [], Decoded()
    combination = Combination(newest=3, exit_threshold=threshold)
    ensemble = Ensemble(store, make_net(), combination=combination, preprocess=nn.Identity())
    ensemble.preprocess.register_forward_hook(lambda *_: calls.append(1))
    found = ensemble.predict(DataLoader(data, 4), progress=lambda *counts: counted.append(counts))
    assert (data.reads, len(calls), counted) == (10, 3, [(1, 3), (2, 3), (3, 3)])
    if threshold is None:
        torch.testing.assert_close(found.double(), mean_of(networks), atol=1e-6, rtol=0)
    assert ensemble.outputs(DataLoader(data, 4), targets=lambda batch: batch[1] % 3).labels.tolist() == [
        k % 3 for k in range(10)
    ]
    assert (data.reads, len(calls)) == (20, 6)


def test_resident_members_accept_an_iterator(make_net):
    store, networks = trained(make_net)
    found = Ensemble(store, make_net()).predict(iter([X[:7], X[7:]]))
    torch.testing.assert_close(found.double(), mean_of(networks), atol=1e-6, rtol=0)


def test_a_loader_that_shuffles_is_accepted_only_where_its_labels_are_kept(make_net):
    store, networks = trained(make_net)
    ensemble, loader = Ensemble(store, make_net()), DataLoader(TensorDataset(X, torch.arange(10)), 4, shuffle=True)
    with pytest.raises(ArgumentError, match=r"in the order of the data, .* got a RandomSampler: use .* or outputs\(\)"):
        ensemble.predict(loader)
    order = []
    outputs = ensemble.outputs(loader, targets=lambda batch: order.extend(batch[1].tolist()) or batch[1] % 3)
    assert sorted(order) == list(range(10))
    assert np.abs(outputs.probabilities.mean(0) - mean_of(networks)[order].numpy()).max() < 1e-3
    with pytest.raises(ArgumentError, match=r"same order for every member .* use shuffle=False or resident=True"):
        Ensemble(store, make_net(), resident=False).outputs(loader)


@pytest.mark.parametrize("nested", [False, True])
def test_a_model_may_change_its_input_in_place(make_net, resident, nested):
    class Standardised(type(make_net())):
        def forward(self, batch):
            x = batch["x"][0] if nested else batch
            return super().forward(x.sub_(1.0))

    x = X.clone()
    store, networks = trained(make_net)
    ensemble, expected = Ensemble(store, Standardised(), resident=resident), mean_of(networks, X - 1)
    batches = [{"x": [part]} if nested else part for part in x.split(4)]
    called = torch.cat([ensemble(batch) for batch in batches])
    predicted = ensemble.predict(batches, inputs=lambda batch: (batch,))
    labels = iter(torch.zeros(10, dtype=torch.int64).split(4) * 3)  # streamed members read them once each
    outputs = ensemble.outputs(batches, inputs=lambda batch: (batch,), targets=lambda _: next(labels))
    for found in (called, predicted, torch.from_numpy(outputs.probabilities).mean(0)):
        torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=0)  # outputs are stored in half precision
    assert torch.equal(x, X)
    if resident:  # up to torch 2.9, the compiler does not find the method `clone` of a tensor
        compiled = torch.compile(ensemble, backend="eager")(batches[0])
        torch.testing.assert_close(compiled.double(), expected[:4], atol=1e-6, rtol=0)
        assert torch.equal(x, X)


@pytest.mark.parametrize(
    "given",
    [
        OrderedDict(x=X.clone()),
        UserDict(x=X.clone()),  # as the BatchEncoding of Transformers
        pack_sequence([row.clone() for row in X.split(5)]),
    ],
)
def test_a_model_may_change_mappings_and_packed_sequences_in_place(given):
    class Halved(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.zeros(3))

        def forward(self, given):
            x = given.data if isinstance(given, PackedSequence) else given.pop("x")
            return self.value * x.mul_(0.5).sum()

    before = (given.data if isinstance(given, PackedSequence) else given["x"]).clone()
    ensemble = Ensemble(pair(torch.ones(3), torch.full((3,), 3.0)), Halved(), activation=None)
    torch.testing.assert_close(ensemble(given), before.sum().expand(3))  # the mean of 1 and 3, times a half
    assert torch.equal(given.data if isinstance(given, PackedSequence) else given["x"], before)


@pytest.mark.parametrize("threshold", [None, 0.6])
def test_a_model_may_change_its_input_in_place_in_each_fast_prediction(make_net, threshold):
    class Standardised(type(make_net())):
        def forward(self, x):
            return super().forward(x.sub_(1.0))

    store, _ = trained(make_net)
    combination, x = Combination.last(3).among(store.members), X.clone()
    combination = replace(combination, exit_threshold=threshold)
    expected = Ensemble(store, make_net(), combination=combination).predict([X - 1])
    ensemble = Ensemble(store, Standardised(), combination=combination)
    for found in (torch.from_numpy(uncertainty.predict(ensemble, x).probabilities), Predictor(ensemble, x)(x)[0]):
        torch.testing.assert_close(found.float(), expected, atol=1e-6, rtol=0)
    assert torch.equal(x, X)


class Shifted(nn.Module):
    """Changes its input in place."""

    def forward(self, x):
        return x.sub_(1.0)


def test_preprocessing_may_change_its_input_in_place(make_net, resident):
    store, networks = trained(make_net)
    x, batches = X.clone(), [X[:4].clone(), X[4:].clone()]
    ensemble, expected = Ensemble(store, make_net(), preprocess=Shifted(), resident=resident), mean_of(networks, X - 1)
    predictions = [ensemble(x), ensemble.predict(batches)]
    if resident:
        predictions += [torch.from_numpy(uncertainty.predict(ensemble, x).probabilities), Predictor(ensemble, x)(x)[0]]
    for found in predictions:
        torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)
    assert torch.equal(x, X)
    assert torch.equal(torch.cat(batches), X)


class Graph:
    """An object that moves itself, such as a graph of PyTorch Geometric."""

    def __init__(self, x):
        self.x = x

    def to(self, device):
        return Graph(self.x.to(device))


@pytest.mark.parametrize("of_object", [True, False])
def test_members_do_not_share_the_containers_that_a_model_fills(make_net, resident, of_object):
    class Filling(type(make_net())):
        def forward(self, batch):
            if of_object:
                batch.x = batch.x - 1
                return super().forward(batch.x)
            batch["x"] = [batch["x"][0] - 1]
            return super().forward(batch["x"][0])

    store, networks = trained(make_net)
    batches = [Graph(part) if of_object else {"x": [part]} for part in X.split(5)]
    found = Ensemble(store, Filling(), resident=resident).predict(batches, inputs=lambda batch: (batch,))
    torch.testing.assert_close(found.double(), mean_of(networks, X - 1), atol=1e-6, rtol=0)
