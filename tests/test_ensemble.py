import copy
import random
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from snapens import Combination, Ensemble, Snapshots
from snapens.batches import arguments
from snapens.errors import ArgumentError, DamagedError, MismatchError
from snapens.weights import tensors


def weighted(steps, weights):
    return Combination(tuple(("memory", step) for step in steps), tuple(weights))


def trained(make, steps=(4, 8, 12), path=None, **options):
    """A store of differing networks, and those networks in evaluation mode."""
    store = Snapshots(path, **options)
    store.open_to_write()
    networks = []
    for step in steps:
        network = make()
        for value in network.state_dict().values():  # no two tensors are equal
            value.add_(torch.rand_like(value, dtype=torch.float32)) if value.is_floating_point() else value.add_(step)
        store.commit(step, tensors(network))
        networks.append(network.eval())
    return store, networks


@pytest.fixture(params=[True, False], ids=["resident", "streamed"])
def resident(request):
    return request.param


@pytest.fixture(params=["memory", "folder"])
def path(request, tmp_path):
    return None if request.param == "memory" else tmp_path / "run"


X = torch.randn(10, 4, generator=torch.Generator().manual_seed(1))


def mean_of(networks, x=X):
    with torch.no_grad():
        return torch.stack([network.double()(x.double()).softmax(-1) for network in copy.deepcopy(networks)]).mean(0)


# what it computes


def test_a_thousand_random_ensembles_equal_a_float64_loop():
    rng = random.Random(0)
    for case in range(1000):
        torch.manual_seed(case)
        width, classes, members = rng.randint(1, 6), rng.randint(2, 9), rng.randint(1, 5)
        store, weights, biases = Snapshots(), [], []
        for step in range(1, members + 1):
            weights.append(torch.randn(classes, width) * rng.choice([0.1, 1, 10]))
            biases.append(torch.randn(classes))
            store.commit(step, {"weight": weights[-1], "bias": biases[-1]})
        last, shares = rng.randint(1, members), [1.0] * members
        options = {"last": last}
        if rng.random() < 0.5:
            shares = [rng.uniform(0.1, 2) for _ in range(members)]
            options = {"combination": weighted(range(members - last + 1, members + 1), shares[members - last :])}
        ensemble = Ensemble(store, nn.Linear(width, classes), resident=rng.random() < 0.5, **options)
        x = torch.randn(3, width)
        expected, total = np.zeros((3, classes)), 0.0
        for k in range(members - last, members):
            logits = x.double().numpy() @ weights[k].double().numpy().T + biases[k].double().numpy()
            powers = np.exp(logits - logits.max(-1, keepdims=True))
            expected += shares[k] * powers / powers.sum(-1, keepdims=True)
            total += shares[k]
        assert np.abs(ensemble(x).numpy() - expected / total).max() <= 1e-6


def test_the_result_is_the_mean_of_the_last_members_probabilities(make_net, path, resident):
    store, networks = trained(make_net, path=path)
    ensemble = Ensemble(store, make_net(), resident=resident)
    for last in (3, 1, 2, 3):
        ensemble.last = last
        assert ensemble.steps == (4, 8, 12)[-last:]
        torch.testing.assert_close(ensemble(X).double(), mean_of(networks[-last:]), atol=1e-6, rtol=0)


def test_one_member_is_the_model_itself_bit_for_bit(make_net, resident):
    store, networks = trained(make_net)
    assert torch.equal(Ensemble(store, make_net(), last=1, resident=resident)(X), networks[-1](X).softmax(-1))


def test_each_member_has_its_own_batchnorm_statistics(make_net, resident):
    store, same = Snapshots(), make_net().eval()
    for step, mean in ((1, 0.0), (2, 5.0)):
        same.norm.running_mean.fill_(mean)
        store.commit(step, tensors(same))
    each = Ensemble(store, make_net(), resident=resident).outputs([(X, torch.zeros(10))]).probabilities
    assert not np.allclose(each[0], each[1])


def test_anytime_is_the_running_mean_newest_member_first(make_net, resident):
    store, networks = trained(make_net)
    seen = list(Ensemble(store, make_net(), resident=resident).anytime(X))
    assert [k for k, _ in seen] == [1, 2, 3]
    for k, probabilities in seen:
        torch.testing.assert_close(probabilities.double(), mean_of(networks[-k:]), atol=1e-6, rtol=0)
    assert torch.is_grad_enabled()


def test_anytime_can_stop_early_and_reads_no_further_member(make_net, tmp_path):
    store, networks = trained(make_net, path=tmp_path / "run")
    ensemble = Ensemble(store, make_net(), resident=False)
    next((tmp_path / "run/snapshots").glob("step-000000004-*")).unlink()
    answers = ensemble.anytime(X)
    _, (k, probabilities) = next(answers), next(answers)
    assert k == 2
    torch.testing.assert_close(probabilities.double(), mean_of(networks[-2:]), atol=1e-6, rtol=0)


def test_there_is_one_weight_per_member(make_net):
    store, networks = trained(make_net)
    expected = (3 * mean_of(networks[1:2]) + mean_of(networks[2:])) / 4
    ensemble = Ensemble(store, make_net(), combination=weighted((8, 12), (3, 1)))
    torch.testing.assert_close(ensemble(X).double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(ensemble.predict([X]).double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("scale", [1e-300, 1e307])
def test_only_the_ratios_of_weights_matter(make_net, scale):
    store, networks = trained(make_net)
    expected = (3 * mean_of(networks[1:2]) + mean_of(networks[2:])) / 4
    ensemble = Ensemble(store, make_net(), combination=weighted((8, 12), (3 * scale, scale)))
    torch.testing.assert_close(ensemble(X).double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(ensemble.predict([X]).double(), expected, atol=1e-6, rtol=0)


def test_a_weight_of_zero_excludes_a_member(make_net):
    store, networks = trained(make_net)
    ensemble = Ensemble(store, make_net(), combination=weighted((4, 8, 12), (1, 1, 0)))
    assert [k for k, _ in ensemble.anytime(X)] == [1, 2]
    assert (ensemble.last, ensemble.steps, len(ensemble.members)) == (2, (4, 8), 2)
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks[:2]), atol=1e-6, rtol=0)


def test_bf16_snapshots_load_into_a_float32_model(make_net, resident):
    store, networks = trained(make_net, dtype=torch.bfloat16)
    ensemble = Ensemble(store, make_net(), resident=resident)
    assert ensemble(X).dtype == torch.float32
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks), atol=0.02, rtol=0)


# other tasks and outputs


class Shaped(nn.Module):
    """Returns its only weight, in the shape and the wrapper that a test needs."""

    def __init__(self, value, wrap=lambda t: t):
        super().__init__()
        self.value, self.wrap = nn.Parameter(value), wrap

    def forward(self, x=None, *, scale=1.0):
        return self.wrap(self.value * scale)


def pair(a, b):
    store = Snapshots()
    store.commit(1, {"value": a})
    store.commit(2, {"value": b})
    return store


A, B = torch.randn(2, 5, 4, 4), torch.randn(2, 5, 4, 4)


def test_half_precision_scores_are_averaged_in_float32_and_doubles_in_double():
    for dtype, expected in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float64, torch.float64),
    ):
        ensemble = Ensemble(pair(A, B), Shaped(A).to(dtype))
        assert ensemble().dtype == expected
        reference = (A.to(dtype).to(expected).softmax(-1) + B.to(dtype).to(expected).softmax(-1)) / 2
        assert torch.allclose(ensemble(), reference, atol=1e-6)


def test_regression_averages_the_outputs_themselves():
    assert torch.allclose(Ensemble(pair(A, B), Shaped(A), activation=None)(), (A + B) / 2)


def test_dim_chooses_the_dimension_of_the_classes_as_in_segmentation():
    expected = (A.softmax(1) + B.softmax(1)) / 2
    assert torch.allclose(Ensemble(pair(A, B), Shaped(A), dim=1)(), expected)


def test_any_callable_is_an_activation():
    assert torch.allclose(Ensemble(pair(A, B), Shaped(A), activation=torch.sigmoid)(), (A.sigmoid() + B.sigmoid()) / 2)


@dataclass
class ModelOutput:
    logits: torch.Tensor
    loss: None = None


@pytest.mark.parametrize("wrap", [ModelOutput, lambda t: {"logits": t, "hidden": "anything"}])
def test_logits_are_found_in_objects_and_mappings(wrap):
    expected = (A.softmax(-1) + B.softmax(-1)) / 2
    assert torch.allclose(Ensemble(pair(A, B), Shaped(A, wrap))(), expected)


def test_a_mapping_of_several_heads_gives_a_mapping_of_means(make_net):
    ensemble = Ensemble(pair(A, B), Shaped(A, lambda t: {"a": t, "b": t[:1]}))
    both = ensemble()
    assert torch.allclose(both["b"], (A[:1].softmax(-1) + B[:1].softmax(-1)) / 2)
    assert ensemble.predict([X, X])["a"].shape == (4, 5, 4, 4)
    assert [k for k, _ in ensemble.anytime()] == [1, 2]


def test_keyword_arguments_reach_the_members():
    expected = ((2 * A).softmax(-1) + (2 * B).softmax(-1)) / 2
    assert torch.allclose(Ensemble(pair(A, B), Shaped(A))(scale=2.0), expected)


def test_an_output_without_scores_is_rejected():
    with pytest.raises(ArgumentError, match=r"a mapping of tensors or something with \.logits, got tuple"):
        Ensemble(pair(A, B), Shaped(A, lambda t: (t, t)))()


# predict


def test_predict_joins_the_batches_and_equals_forward(make_net, path, resident):
    store, _ = trained(make_net, path=path)
    ensemble = Ensemble(store, make_net(), resident=resident, last=2)
    for loader in (
        [X[:7], X[7:]],
        [(X[:7], "labels"), (X[7:], "labels")],
        DataLoader(TensorDataset(X, torch.zeros(10)), 3),
    ):
        assert torch.allclose(ensemble.predict(loader), ensemble(X), atol=1e-7)


def test_predict_takes_mappings_as_keywords_and_tuples_as_arguments():
    ensemble = Ensemble(pair(A, B), Shaped(A))
    assert torch.equal(ensemble.predict([{"scale": 2.0}]), ensemble(scale=2.0))
    assert torch.equal(ensemble.predict([3.0], inputs=lambda batch: {"scale": batch}), ensemble(scale=3.0))
    assert torch.equal(ensemble.predict([3.0], inputs=lambda batch: (batch,)), ensemble(3.0))


class Halved(nn.Module):
    """Counts its calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self, x):
        self.calls += 1
        return x * self.factor


def test_preprocessing_is_applied_once_per_batch_in_front_of_all_members(make_net, resident):
    store, networks = trained(make_net)
    given = Halved()
    ensemble = Ensemble(store, make_net(), preprocess=given, resident=resident)
    expected = mean_of(networks, X / 2)
    assert (ensemble(X) - expected).abs().max() < 1e-6
    assert (ensemble.preprocess.calls, given.calls) == (1, 0)  # a copy is used
    assert (ensemble.predict([X[:4], (X[4:], None)]) - expected).abs().max() < 1e-6
    outputs = ensemble.outputs([(X, torch.zeros(10, dtype=torch.int64))])
    assert np.abs(outputs.probabilities.mean(0) - expected.numpy()).max() < 2e-3
    assert ensemble.double().preprocess.factor.dtype == torch.float64


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


def test_predict_loads_each_member_once(make_net, tmp_path, monkeypatch):
    store, _ = trained(make_net, path=tmp_path)
    ensemble = Ensemble(store, make_net(), resident=False)
    reads, read = [], type(store.entries(4)["head.weight"]).read
    monkeypatch.setattr("snapens.storage.tensorfile.Stored.read", lambda self: reads.append(self.name) or read(self))
    ensemble.predict([X] * 50)
    assert reads.count("head.weight") == 2  # the newest is loaded already; the other two are read once


def test_streaming_reads_only_tensors_that_differ(tmp_path, monkeypatch):
    store = Snapshots(tmp_path)
    store.open_to_write()
    for step in (1, 2, 3):
        store.commit(
            step,
            {
                "0.weight": torch.ones(4, 4),
                "0.bias": torch.zeros(4),
                "1.weight": torch.ones(2, 4) * step,
                "1.bias": torch.zeros(2),
            },
        )
    ensemble = Ensemble(store, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), resident=False)
    reads, read = [], type(store.entries(1)["0.bias"]).read
    monkeypatch.setattr("snapens.storage.tensorfile.Stored.read", lambda self: reads.append(self.name) or read(self))
    ensemble(X)
    assert reads == ["1.weight", "1.weight"]


def test_predict_reports_its_progress(make_net):
    store, _ = trained(make_net)
    seen = []
    Ensemble(store, make_net(), last=2).predict([X, X], progress=lambda *args: seen.append(args))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


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


def test_outputs_are_the_log_probabilities_of_each_member_oldest_first_and_unweighted(make_net, resident):
    store, networks = trained(make_net)
    ensemble = Ensemble(store, make_net(), combination=weighted((4, 8, 12), (1, 2, 3)), resident=resident)
    labels, seen = torch.arange(10) % 3, []
    found = ensemble.outputs([(X[:4], labels[:4]), (X[4:], labels[4:])], progress=lambda *counts: seen.append(counts))
    assert found.members == (("memory", 4), ("memory", 8), ("memory", 12))
    assert (found.part, found.labels.tolist(), found.labels.dtype) == (None, labels.tolist(), np.int64)
    for member, network in zip(found.log_probabilities, networks, strict=True):
        assert np.array_equal(member, network(X).log_softmax(-1).half().detach().numpy())
    assert seen == [(k, 6) for k in range(1, 7)]


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


def test_outputs_use_the_callers_activation_and_need_a_classifier(make_net):
    store, networks = trained(make_net)
    batch = (X, torch.zeros(10))
    halves = Ensemble(store, make_net(), activation=lambda scores: (scores / 2).softmax(-1))
    assert np.allclose(halves.outputs([batch]).probabilities[0], (networks[0](X) / 2).softmax(-1).detach(), atol=1e-3)
    with pytest.raises(ArgumentError, match=r"scores \(examples, classes\) .* activation=None: call ensemble\.members"):
        Ensemble(store, make_net(), activation=None).outputs([batch])
    with pytest.raises(ArgumentError, match=r"activation must return probabilities that sum to 1 .* got sums from"):
        Ensemble(store, make_net(), activation=torch.sigmoid).outputs([batch])
    with pytest.raises(ArgumentError, match=r"got \(2, 5, 4, 4\) with dim=-1"):
        Ensemble(pair(A, B), Shaped(A, lambda t: t)).outputs([batch], inputs=lambda b: ())
    with pytest.raises(ArgumentError, match="got a mapping"):
        Ensemble(pair(A, B), Shaped(A, lambda t: {"a": t, "b": t})).outputs([batch], inputs=lambda b: ())


# early exit and temperature


def exits(networks, shares, threshold, x):
    """The prediction, and the number of members, for each example: a loop over examples and members."""
    found, used = [], []
    for row in x:
        total, weight, count = 0, 0.0, 0
        for network, share in list(zip(networks, shares, strict=True))[::-1]:
            total, weight, count = total + share * network(row[None]).softmax(-1)[0].double(), weight + share, count + 1
            if (total / weight).max() >= threshold:
                break
        found.append(total / weight)
        used.append(count)
    return torch.stack(found), used


@pytest.mark.parametrize("threshold", [0.01, 0.4, 0.45, 0.9999])
def test_predict_stops_at_the_threshold_and_evaluates_only_undecided_examples(make_net, resident, threshold):
    store, networks = trained(make_net)
    expected, used = exits(networks, (3, 1, 2), threshold, X)
    combination = replace(weighted((4, 8, 12), (3, 1, 2)), exit_threshold=threshold)
    ensemble, evaluated = Ensemble(store, make_net(), combination=combination, resident=resident), []
    for replica in ensemble._replicas:
        replica.register_forward_hook(lambda module, inputs, output: evaluated.append(len(output)))
    torch.testing.assert_close(ensemble.predict([X[:7], X[7:]]).double(), expected, atol=1e-6, rtol=0)
    assert sum(evaluated) == sum(used)
    assert 0 not in evaluated
    ensemble.combination = replace(combination, exit_threshold=None)
    torch.testing.assert_close(ensemble(X), ensemble.predict([X]))


def test_early_exit_takes_the_rows_of_nested_inputs(make_net):
    store, _ = trained(make_net)

    class Both(type(make_net())):
        def forward(self, pair, *, scale):
            return super().forward(pair[0] + pair[1]["x"]) * scale

    ensemble = Ensemble(store, Both(), combination=Combination(newest=3, exit_threshold=0.4))
    found = ensemble.predict([{"pair": [X, {"x": 0 * X}], "scale": torch.tensor(1.0)}])
    plain = Ensemble(store, make_net(), combination=Combination(newest=3, exit_threshold=0.4))
    torch.testing.assert_close(found, plain.predict([X]))


def test_the_temperature_is_applied_to_the_logarithm_of_the_mean(make_net, resident):
    store, networks = trained(make_net)
    combination = Combination(newest=3, temperature=2.0)
    ensemble = Ensemble(store, make_net(), combination=combination, resident=resident)
    roots = mean_of(networks).sqrt()
    expected = roots / roots.sum(-1, keepdim=True)
    torch.testing.assert_close(ensemble(X).double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(ensemble.predict([X]).double(), expected, atol=1e-6, rtol=0)


def test_early_exit_needs_one_tensor_of_probabilities_and_one_row_per_example(make_net):
    store, _ = trained(make_net)
    exit_early = Combination(newest=2, exit_threshold=0.99999)
    with pytest.raises(ArgumentError, match=r"exit_threshold must be None unless .*, got \(2, 5, 4, 4\)"):
        Ensemble(pair(A, B), Shaped(A, lambda t: t), combination=exit_early).predict([X])
    with pytest.raises(ArgumentError, match=r"exit_threshold must be None unless .*, got a mapping"):
        Ensemble(pair(A, B), Shaped(A, lambda t: {"a": t, "b": t}), combination=exit_early).predict([X])
    with pytest.raises(
        ArgumentError, match="inputs must have one row per example for early exit, got 4 outputs for 3 "
    ):
        Ensemble(store, make_net(), combination=exit_early).predict(Alternating([X], [X[:4]]))
    with pytest.raises(ArgumentError, match="no temperature and no exit_threshold if activation is None"):
        Ensemble(store, make_net(), activation=None, combination=exit_early)


class Alternating:
    """A loader that yields other batches each time."""

    def __init__(self, *passes):
        self.passes = list(passes)

    def __iter__(self):
        return iter(self.passes.pop(0))


# several runs


def test_the_members_of_several_runs_are_averaged_and_listed_by_step(make_net, tmp_path, resident):
    _, a = trained(make_net, path=tmp_path / "a", steps=(4, 8))
    torch.manual_seed(1)
    _, b = trained(make_net, path=tmp_path / "b", steps=(5, 10))
    ensemble = Ensemble.load([tmp_path / "a", Snapshots(tmp_path / "b")], make_net(), resident=resident)
    assert ensemble.steps == (4, 5, 8, 10)
    torch.testing.assert_close(ensemble(X).double(), mean_of(a + b), atol=1e-6, rtol=0)
    ensemble.last = 1
    assert ensemble.combination.members == tuple(
        (Snapshots(tmp_path / name).identity["run"], step) for name, step in (("a", 8), ("b", 10))
    )
    torch.testing.assert_close(ensemble(X).double(), mean_of([a[-1], b[-1]]), atol=1e-6, rtol=0)
    with pytest.raises(ArgumentError, match="snapshots must be those of different runs"):
        Ensemble.load([tmp_path / "a", tmp_path / "a"], make_net())


def test_a_combination_can_be_changed_at_run_time_also_to_members_not_used_before(make_net, resident):
    store, networks = trained(make_net)
    ensemble = Ensemble(store, make_net(), last=1, resident=resident)
    for steps in ((4,), (8, 12), (4, 8, 12), (12,)):
        ensemble.combination = weighted(steps, [1] * len(steps))
        chosen = [networks[(4, 8, 12).index(step)] for step in steps]
        torch.testing.assert_close(ensemble(X).double(), mean_of(chosen), atol=1e-6, rtol=0)
        if resident:
            assert all(torch.equal(one(X), other(X)) for one, other in zip(ensemble.members, chosen, strict=True))
    with pytest.raises(ArgumentError, match=r"members must be among \('memory', 4\).*, got \('memory', 5\)"):
        ensemble.combination = weighted((5,), (1,))
    assert ensemble.steps == (12,)
    if not resident:
        with pytest.raises(ArgumentError, match="resident must be True for separate members"):
            ensemble.members  # noqa: B018


class Shrinking:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        yield from self.batches
        self.batches = self.batches[1:]


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        (iter([X]), "got list_iterator: pass a DataLoader or a list"),
        ((x for x in [X]), "got generator"),
        (X, r"got Tensor: pass a DataLoader or a list, \[x\] for one batch"),
        (TensorDataset(X), "got TensorDataset: pass a DataLoader"),
        (DataLoader(TensorDataset(X), batch_sampler=BatchSampler(RandomSampler(X), 5, False)), "got a RandomSampler"),
        (Shrinking([X[:5], X[:1], X[:5]]), "the same batches, at least one, for every member"),
        (DataLoader(TensorDataset(X), shuffle=True), "got a RandomSampler: use shuffle=False"),
        (Shrinking([X, X]), "the same batches, at least one, for every member"),
        ([], "at least one"),
    ],
)
def test_a_loader_that_would_mix_up_examples_is_rejected(make_net, loader, words):
    store, _ = trained(make_net)
    with pytest.raises(ArgumentError, match=words):
        Ensemble(store, make_net()).predict(loader)


# what it does not change


def test_the_users_model_and_its_mode_do_not_change(make_net, resident):
    store, _ = trained(make_net)
    model = make_net().train()
    model.head.eval()
    model(X).sum().backward()
    before = copy.deepcopy(model.state_dict())
    ensemble = Ensemble(store, model, resident=resident)
    ensemble.train()(X)
    ensemble.predict([X])
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert model.training
    assert not model.head.training
    assert model.head.weight.requires_grad
    assert model.head.weight.grad is not None


def test_it_stays_in_evaluation_mode_inside_a_module_that_trains(make_net):
    store, _ = trained(make_net)
    parent = nn.Sequential(Ensemble(store, make_net()))
    parent.train()
    assert not any(module.training for module in parent[0].modules())


def test_gradients_reach_the_input_and_no_parameter(make_net):
    store, _ = trained(make_net)
    x = X.clone().requires_grad_()
    ensemble = Ensemble(store, make_net())
    ensemble(x)[:, 0].sum().backward()
    assert x.grad.abs().sum() > 0
    assert not any(parameter.requires_grad for parameter in ensemble.parameters())
    assert not ensemble(X).requires_grad


def test_loading_needs_only_the_folder_and_an_instance_of_the_model(make_net, tmp_path):
    _, networks = trained(make_net, path=tmp_path / "run")
    wrapped = torch.compile(make_net(), backend="eager")
    ensemble = Ensemble.load(tmp_path / "run", wrapped, last=2, device="cpu")
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks[-2:]), atol=1e-6, rtol=0)
    assert repr(ensemble) == "Ensemble(steps=(8, 12), resident=True)"
    assert torch.equal(Ensemble.load(Snapshots(tmp_path / "run"), make_net(), last=2)(X), ensemble(X))


def test_models_with_compiled_children_can_be_loaded(make_net):
    store, networks = trained(make_net)
    model = make_net()
    model.mix = torch.compile(model.mix, backend="eager")
    torch.testing.assert_close(Ensemble(store, model)(X).double(), mean_of(networks), atol=1e-6, rtol=0)


def test_resident_members_share_what_their_snapshots_share():
    store, frozen, thawed = Snapshots(), torch.randn(8, 4), torch.randn(8, 4)
    for step, base in ((1, frozen), (2, frozen), (3, thawed)):
        store.commit(
            step, {"0.weight": base, "0.bias": torch.zeros(8), "1.weight": torch.randn(2, 8), "1.bias": torch.randn(2)}
        )
    ensemble = Ensemble(store, nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
    first, second, third = (tensors(replica) for replica in ensemble._replicas)  # newest first
    assert second["0.weight"] is third["0.weight"] is not first["0.weight"]
    assert first["0.bias"] is third["0.bias"]
    assert first["1.weight"] is not second["1.weight"]
    assert torch.equal(first["0.weight"], thawed)
    moved = ensemble.to(torch.float64)(X.double())
    each = [
        torch.nn.functional.linear(torch.nn.functional.linear(X, s["0.weight"]), s["1.weight"], s["1.bias"]).softmax(-1)
        for s in map(store.load, (1, 2, 3))
    ]
    torch.testing.assert_close(moved, torch.stack(each).mean(0).double(), atol=1e-6, rtol=0)


def test_a_damaged_snapshot_matters_only_to_an_ensemble_that_needs_it(make_net, tmp_path):
    _, networks = trained(make_net, path=tmp_path)
    next((tmp_path / "snapshots").glob("step-000000004-*")).write_bytes(b"")
    ensemble = Ensemble.load(tmp_path, make_net(), last=2)
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks[1:]), atol=1e-6, rtol=0)
    with pytest.raises(DamagedError):
        ensemble.last = 3
    assert ensemble.last == 2


def test_an_interrupted_read_does_not_change_members_that_share_tensors(monkeypatch):
    store, shared = Snapshots(), torch.randn(8, 4)
    for step, base in ((1, torch.randn(8, 4)), (2, shared), (3, shared)):
        store.commit(step, {"0.weight": base, "1.weight": torch.randn(2, 8)})
    ensemble = Ensemble(store, nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 2, bias=False)), last=1)
    before, ((run, _),) = ensemble(X), ensemble.combination.members

    def interrupt(entry):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(store.entries(2)["1.weight"]), "read", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ensemble.last = 2
    ensemble.combination = Combination(((run, 1), (run, 3)))
    ensemble.last = 1
    assert torch.equal(ensemble(X), before)


def test_an_ensemble_built_in_inference_mode_works_outside_it(make_net, resident):
    store, _ = trained(make_net)
    with torch.inference_mode():
        ensemble = Ensemble(store, make_net(), resident=resident)
        inside = ensemble(X)
    assert torch.equal(ensemble(X), inside)


def test_more_members_are_read_when_last_is_raised(make_net, tmp_path):
    store, networks = trained(make_net, path=tmp_path)
    ensemble = Ensemble(store, make_net(), last=1)
    assert len(ensemble._replicas) == 1
    ensemble.last = 3
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks), atol=1e-6, rtol=0)


def test_a_member_that_cannot_be_read_is_never_used_in_part(make_net, tmp_path):
    store, networks = trained(make_net, path=tmp_path)
    ensemble = Ensemble(store, make_net(), resident=False)
    damaged = next((tmp_path / "snapshots").glob("step-000000008-*"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedError):
        ensemble(X)
    damaged.write_bytes(content)
    torch.testing.assert_close(ensemble(X).double(), mean_of(networks), atol=1e-6, rtol=0)


# what it rejects


def edited(make_net, change):
    store, _ = trained(make_net, steps=(4,))
    state = store.load(4)
    change(state)
    store.commit(8, state)
    return store


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("head.bias"), "of the snapshot of step 8, got missing head.bias"),
        (lambda s: s.update(more=torch.ones(1)), "got extra more"),
        (lambda s: s.update({"head.bias": torch.ones(4)}), r"got head.bias has shape \(4,\), the model's is \(3,\)"),
        (lambda s: s.update({"head.bias": torch.ones(3, dtype=torch.int64)}), "head.bias has dtype torch.int64"),
        (lambda s: s.update({"norm.num_batches_tracked": torch.tensor(1, dtype=torch.int32)}), "dtype torch.int32"),
        (lambda s: s.update({"mix.weight": torch.ones(8, 8)}), "mix.weight is tied to again.weight in the model only"),
    ],
)
def test_a_snapshot_of_another_architecture_is_rejected_with_the_difference(make_net, change, words):
    with pytest.raises(MismatchError, match=words):
        Ensemble(edited(make_net, change), make_net())


def test_a_long_list_of_differences_is_shortened(make_net):
    store = Snapshots()
    store.commit(1, {f"t{k}": torch.ones(1) for k in range(30)})
    with pytest.raises(MismatchError, match="and 31 more"):
        Ensemble(store, make_net())


@pytest.mark.parametrize("last", [0, 4, -1, 1.0, True + 3])
def test_last_out_of_range_is_rejected_and_changes_nothing(make_net, last):
    store, _ = trained(make_net)
    ensemble = Ensemble(store, make_net(), last=2)
    with pytest.raises(ArgumentError, match=r"last must be .*, got"):
        ensemble.last = last
    assert ensemble.last == 2


class Uncopyable(nn.Linear):
    def __deepcopy__(self, memo):
        raise RuntimeError("only leaves can be copied")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda store, net: Ensemble(Snapshots(), net), "must not be empty, got Snapshots() without a snapshot"),
        (
            lambda store, net: Ensemble(store, net, activation="sigmoid"),
            "activation must be 'softmax', None or a callable",
        ),
        (lambda store, net: Ensemble(store, net, combination=3), "combination must be a Combination, got 3"),
        (
            lambda store, net: Ensemble(store, net, last=1, combination=Combination.last(1)),
            "last must not be given together with a combination, got 1",
        ),
        (lambda store, net: Ensemble([], net), "snapshots must be a Snapshots or a list of them, got []"),
        (lambda store, net: Ensemble(store, net.to("meta")), "on the meta device"),
        (lambda store, net: Ensemble(store, type(net)), "model must be an instance of the architecture, got <class"),
        (lambda store, net: Ensemble.load("memory://b/x", net), "path must be a local folder, got the URL"),
        (lambda store, net: Ensemble("runs/a", net), "got 'runs/a': use Ensemble.load for a path"),
        (lambda store, net: Ensemble(store, net, activation={"a": None}), "activation must be 'softmax', None or"),
        (lambda store, net: Ensemble(store, net, resident=False)(X.clone().requires_grad_()), "resident must be True"),
        (
            lambda store, net: Ensemble(store, Uncopyable(1, 1)),
            "model must support copy.deepcopy, got only leaves can be copied: pass another instance",
        ),
    ],
)
def test_bad_arguments_are_rejected(make_net, build, words):
    store, _ = trained(make_net)
    with pytest.raises(ArgumentError) as caught:
        build(store, make_net())
    assert words in str(caught.value)


# log-probabilities


def test_log_probabilities_are_the_logarithm_of_the_mean(make_net, resident):
    store, networks = trained(make_net)
    ensemble = Ensemble(store, make_net(), output="log_probabilities", resident=resident)
    with torch.no_grad():
        torch.testing.assert_close(ensemble(X).double(), mean_of(networks).log())
    torch.testing.assert_close(ensemble.predict([X]).double(), mean_of(networks).log())


def test_cross_entropy_of_log_probabilities_is_the_likelihood_of_the_mean(make_net):
    store, networks = trained(make_net)
    ensemble, labels = Ensemble(store, make_net(), output="log_probabilities"), torch.arange(10) % 3
    expected = -mean_of(networks)[torch.arange(10), labels].log().mean()  # the softmax of a logarithm is its argument
    torch.testing.assert_close(nn.functional.cross_entropy(ensemble(X), labels).double(), expected)


def test_log_probabilities_of_an_impossible_class_are_finite():
    store, network = Snapshots(), nn.Linear(1, 2)
    store.commit(1, {"weight": torch.zeros(2, 1), "bias": torch.tensor([0.0, -1000.0])})
    found = Ensemble(store, network, output="log_probabilities")(torch.zeros(1, 1))
    assert found[0, 0] == 0
    assert -100 < found[0, 1] < -80  # the logarithm of the smallest normal float32


def test_log_probabilities_follow_the_temperature(make_net):
    store, networks = trained(make_net)
    combination = Combination(temperature=2.0, newest=3)
    found = Ensemble(store, make_net(), combination=combination, output="log_probabilities")(X).double()
    torch.testing.assert_close(found, (mean_of(networks).log() / 2).log_softmax(-1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"output": "logits"}, "output must be 'probabilities' or 'log_probabilities', got 'logits'"),
        ({"output": "log_probabilities", "activation": None}, "output must be 'probabilities' if activation is None"),
    ],
)
def test_an_output_that_does_not_exist_is_rejected(make_net, options, words):
    store, _ = trained(make_net)
    with pytest.raises(ArgumentError, match=words):
        Ensemble(store, make_net(), **options)


# snapshots of some tensors


def with_heads(make, path, names=("head.weight", "head.bias")):
    """A store of three snapshots that hold only some tensors, a model, and the networks that they make together."""
    store, model, networks = Snapshots(path), make(), []
    store.open_to_write()
    for step in (4, 8, 12):
        store.commit(step, {name: torch.rand_like(model.state_dict()[name]) for name in names}, partial=True)
        network = copy.deepcopy(model)
        network.load_state_dict({**model.state_dict(), **store.load(step)})
        networks.append(network.eval())
    return store, model, networks


def test_the_tensors_that_snapshots_lack_come_from_the_model(make_net, path, resident):
    store, model, networks = with_heads(make_net, path)
    ensemble = Ensemble(store, model, strict=False, resident=resident)
    for expected in (networks, networks[-2:], networks):
        ensemble.last = len(expected)
        with torch.no_grad():
            torch.testing.assert_close(ensemble(X).double(), mean_of(expected))


def test_resident_members_share_the_tensors_of_the_model(make_net):
    store, model, _ = with_heads(make_net, None)
    members = Ensemble(store, model, strict=False).members
    assert len({id(member.module.weight) for member in members}) == 1
    assert len({id(member.norm.running_mean) for member in members}) == 1
    assert len({id(member.head.weight) for member in members}) == 3
    assert members[0].module.weight is not model.module.weight


def test_snapshots_of_some_tensors_are_rejected_by_default(make_net):
    store, model, _ = with_heads(make_net, None)
    with pytest.raises(MismatchError, match=r"missing again.weight.*strict=False"):
        Ensemble(store, model)


def test_a_tensor_that_the_model_lacks_is_rejected_without_strict_too(make_net):
    store, _, _ = with_heads(make_net, None)
    with pytest.raises(MismatchError, match=r"extra head.bias"):
        Ensemble(store, nn.Linear(2, 2), strict=False)


def test_snapshots_that_lack_different_tensors_are_rejected(make_net):
    store, model, _ = with_heads(make_net, None)
    store.commit(16, tensors(make_net()))
    with pytest.raises(MismatchError, match="lack the same tensors for strict=False, but that of step 16"):
        Ensemble(store, model, strict=False)
