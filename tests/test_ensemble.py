import copy
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from members import A, B, Shaped, X, mean_of, pair, trained, weighted
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from snapens import Combination, Ensemble, Snapshots
from snapens.errors import ArgumentError
from snapens.weights import tensors

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


# other tasks and outputs


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


def test_a_mapping_of_several_heads_gives_a_mapping_of_means(make_net):
    ensemble = Ensemble(pair(A, B), Shaped(A, lambda t: {"a": t, "b": t[:1]}))
    both = ensemble()
    assert torch.allclose(both["b"], (A[:1].softmax(-1) + B[:1].softmax(-1)) / 2)
    assert ensemble.predict([X, X])["a"].shape == (4, 5, 4, 4)
    assert [k for k, _ in ensemble.anytime()] == [1, 2]


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


def test_outputs_are_the_log_probabilities_of_each_member_oldest_first_and_unweighted(make_net, resident):
    store, networks = trained(make_net)
    ensemble = Ensemble(store, make_net(), combination=weighted((4, 8, 12), (1, 2, 3)), resident=resident)
    labels, seen = torch.arange(10) % 3, []
    found = ensemble.outputs([(X[:4], labels[:4]), (X[4:], labels[4:])], progress=lambda *counts: seen.append(counts))
    assert found.members == (("memory", 4), ("memory", 8), ("memory", 12))
    assert (found.part, found.labels.tolist(), found.labels.dtype) == (None, labels.tolist(), np.int64)
    for member, network in zip(found.log_probabilities, networks, strict=True):
        scores = torch.cat([network(X[:4]), network(X[4:])])  # the rounding may depend on the size of a batch
        assert np.array_equal(member, scores.log_softmax(-1).half().detach().numpy())
    reads = 2 if resident else 6  # streamed members read the loader once each
    assert seen == [(k, reads) for k in range(1, reads + 1)]


def test_outputs_under_autocast_on_the_cpu_are_those_of_the_members_under_autocast(make_net, resident):
    store, networks = trained(make_net)
    with torch.autocast("cpu", torch.bfloat16):
        found = Ensemble(store, make_net(), resident=resident).outputs([(X, torch.zeros(10)), (X[:3], torch.ones(3))])
        expected = [torch.cat([network(X), network(X[:3])]).double().softmax(-1) for network in networks]
    assert np.abs(found.probabilities - torch.stack(expected).detach().numpy()).max() < 2e-3
    assert found.labels.tolist() == [0] * 10 + [1] * 3


def test_outputs_use_the_callers_activation_and_need_a_classifier(make_net):
    store, networks = trained(make_net)
    batch = (X, torch.zeros(10))
    halves = Ensemble(store, make_net(), activation=lambda scores: (scores / 2).softmax(-1))
    assert np.allclose(halves.outputs([batch]).probabilities[0], (networks[0](X) / 2).softmax(-1).detach(), atol=1e-3)
    with pytest.raises(ArgumentError, match=r"activation must return probabilities that sum to 1 .* got sums from"):
        Ensemble(store, make_net(), activation=None).outputs([batch])
    with pytest.raises(ArgumentError, match=r"scores \(batch, classes\), got shape \(10, 3\) and dim=0: use Ensemble"):
        Ensemble(store, make_net(), dim=0).outputs([batch])
    with pytest.raises(
        ArgumentError, match=r"got sums from .*for regression or several labels, evaluate ensemble.members"
    ):
        Ensemble(store, make_net(), activation=torch.sigmoid).outputs([batch])
    with pytest.raises(ArgumentError, match=r"got shape \(2, 5, 4, 4\) and dim=-1"):
        Ensemble(pair(A, B), Shaped(A, lambda t: t)).outputs([batch], inputs=lambda b: ())
    with pytest.raises(ArgumentError, match=r"got a mapping of 'a', 'b': .* name the scores 'logits'"):
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
        ArgumentError, match=r"one row per example for early exit, got outputs of shape \(4, 3\) instead"
    ):
        Ensemble(store, make_net(), combination=exit_early, resident=False).predict(Alternating([X], [X[:4]]))


@pytest.mark.parametrize("activation", [None, torch.sigmoid])
@pytest.mark.parametrize("fitted", [{"exit_threshold": 0.99999}, {"temperature": 1.5}])
def test_a_temperature_and_early_exit_need_values_that_sum_to_1(make_net, activation, fitted):
    store, _ = trained(make_net)
    ensemble = Ensemble(store, make_net(), activation=activation, combination=Combination(newest=2, **fitted))
    with pytest.raises(ArgumentError, match=r"sum to 1 .* for a temperature or early exit, got .*: use a combination"):
        ensemble.predict([X])


class Prototypes(nn.Linear):
    def forward(self, x, prototypes):
        return super().forward(x) @ prototypes.T


class Scaled(nn.Linear):
    def forward(self, x, scale):
        return super().forward(x) * scale


@pytest.mark.parametrize(
    ("model", "shared", "undecided", "words"),
    [
        (
            Prototypes,
            torch.randn(6, 4),
            1,
            r"(?s)two or more scores.*for some rows of a batch.*exit_threshold=None",
        ),
        (
            Prototypes,
            torch.randn(6, 4),
            3,
            r"got outputs of shape \((\d), \1\) instead of \(\1, 6\).*exit_threshold=None",
        ),
        (Scaled, torch.ones(6), 3, r"(?s)size of tensor.*for some rows of a batch.*exit_threshold=None"),
    ],
)
def test_early_exit_names_the_reason_if_a_shared_tensor_has_as_many_rows_as_the_batch(model, shared, undecided, words):
    make = lambda: model(4, 4 if model is Prototypes else 6)  # noqa: E731
    store, networks = trained(make)
    with torch.no_grad():
        alone = networks[-1](X[:6], shared).softmax(-1).amax(-1).sort().values
    threshold = float(alone[undecided - 1 : undecided + 1].mean())
    ensemble = Ensemble(store, make(), combination=Combination(newest=3, exit_threshold=threshold))
    with pytest.raises((ArgumentError, RuntimeError)) as found:
        ensemble.predict([(X[:6], shared)], inputs=lambda batch: batch)
    assert re.search(words, "\n".join([str(found.value), *getattr(found.value, "__notes__", ())]))
    assert ensemble.predict([(X[:5], shared)], inputs=lambda batch: batch).shape == (5, 6)


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


# what it rejects


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
        (
            lambda store, net: Ensemble(store, net, combination=3),
            "combination must be a Combination, got 3: Combination.load",
        ),
        (
            lambda store, net: Ensemble(store, net, last=1, combination=Combination.last(1)),
            "last must not be given together with a combination, got 1",
        ),
        (lambda store, net: Ensemble([], net), "snapshots must be a Snapshots or a list of them, got []"),
        (lambda store, net: Ensemble(store, net.to("meta")), "on the meta device"),
        (lambda store, net: Ensemble(store, type(net)), "model must be an instance of the architecture, got <class"),
        (lambda store, net: Ensemble(store, lambda: net), ": pass Net(), not Net"),
        (lambda store, net: Ensemble.load("memory://b/x", net), "path must be a local folder, got the URL"),
        (lambda store, net: Ensemble("runs/a", net), "got 'runs/a': use Ensemble.load for a path"),
        (lambda store, net: Ensemble(store, net, activation={"a": None}), "activation must be 'softmax', None or"),
        (lambda store, net: Ensemble(store, net, resident=False)(X.clone().requires_grad_()), "resident must be True"),
        (
            lambda store, net: Ensemble(store, Uncopyable(1, 1)),
            "model must support copy.deepcopy, got only leaves can be copied: pass another instance of the",
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
