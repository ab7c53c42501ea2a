"""The scikit-learn estimators: scikit-learn's own checks, its tools, and what they compute."""

import pickle
import re
import runpy
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, make_regression
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from snapens import SnapshotEnsembler
from snapens.errors import ArgumentError
from snapens.integrations.sklearn import SnapshotClassifier, SnapshotRegressor

ROOT = Path(__file__).parents[2]
IRIS = load_iris(return_X_y=True)
QUICK = {"cycles": 2, "epochs": 4, "hidden": (8,), "random_state": 0}


# without pandas, and without SCIPY_ARRAY_API in the environment, scikit-learn skips the checks for them
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([SnapshotClassifier(epochs=20), SnapshotRegressor(epochs=20)])
def test_the_estimators_pass_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def softmax(scores):
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def mlp(member, x):
    """A multilayer perceptron with one hidden layer, in NumPy."""
    first, _, second = member
    hidden = np.maximum(x @ first.weight.numpy().T + first.bias.numpy(), 0)
    return hidden @ second.weight.numpy().T + second.bias.numpy()


@pytest.mark.parametrize("last", [None, 1])
def test_probabilities_are_the_mean_of_the_softmax_of_the_last_members(last):
    x, y = IRIS
    classifier = SnapshotClassifier(**{**QUICK, "cycles": 3}, last=last).fit(x, y)
    members = classifier.ensemble_.members
    assert len(members) == (last or 3)
    rows = StandardScaler().fit_transform(x)
    expected = np.mean([softmax(mlp(member, rows)) for member in members], axis=0)
    np.testing.assert_allclose(classifier.predict_proba(x), expected, rtol=1e-10)
    np.testing.assert_allclose(classifier.predict_log_proba(x), np.log(expected), rtol=1e-8)


def test_predictions_of_the_regressor_are_the_mean_of_the_members_in_the_unit_of_y():
    x, y = load_diabetes(return_X_y=True)
    regressor = SnapshotRegressor(**QUICK).fit(x, 1e6 * y)
    rows = StandardScaler().fit_transform(x)
    mean = np.mean([mlp(member, rows)[:, 0] for member in regressor.ensemble_.members], axis=0)
    np.testing.assert_allclose(regressor.predict(x), 1e6 * (mean * y.std() + y.mean()), rtol=1e-10)
    raw = regressor.ensemble_(torch.tensor(x))
    np.testing.assert_allclose(raw[:, 0].numpy(), regressor.predict(x), rtol=1e-10)


def test_a_table_that_needs_several_batches_is_predicted_row_by_row(monkeypatch):
    x, y = IRIS
    classifier = SnapshotClassifier(**QUICK).fit(x, y)
    whole = classifier.predict_proba(x)
    monkeypatch.setattr("snapens.integrations.sklearn.ROWS_PER_PREDICTION", 7)
    np.testing.assert_allclose(classifier.predict_proba(x), whole, rtol=1e-12)


def test_the_snapshots_are_those_of_a_plain_loop():
    x, y = IRIS
    start = nn.Linear(4, 3)
    optimizer = partial(torch.optim.SGD, momentum=0.9)
    estimator = SnapshotClassifier(start, epochs=6, cycles=2, batch_size=50, optimizer=optimizer, lr=0.01)
    found = estimator.set_params(weight_decay=0.1, random_state=3).fit(x, y)

    model = nn.Linear(4, 3)
    model.load_state_dict(start.state_dict())
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    rates = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sgd, T_0=9)
    torch.manual_seed(np.random.RandomState(3).randint(2**31 - 1))
    members = []
    for _ in range(6):
        for batch in torch.randperm(150).split(50):
            loss = nn.functional.cross_entropy(model(torch.tensor(x)[batch].float()), torch.tensor(y)[batch])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            rates.step()
            if rates.T_cur == 0:
                members.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
    assert len(members) == 2
    for member, expected in zip(found.ensemble_.members, members, strict=True):
        torch.testing.assert_close(member.state_dict(), expected)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [({}, 0.5), ({"weight_decay": 0.1}, 0.1), ({"optimizer": torch.optim.SGD}, 0.0)],
)
def test_weight_decay_is_the_default_of_the_optimizer_unless_it_is_given(parameters, expected, monkeypatch):
    found = []
    step = SnapshotEnsembler.step
    monkeypatch.setattr(SnapshotEnsembler, "step", lambda self: (found.append(self.optimizer), step(self))[1])
    SnapshotClassifier(**QUICK, **parameters).fit(*IRIS)
    assert {optimizer.param_groups[0]["weight_decay"] for optimizer in found} == {expected}


def test_the_same_random_state_gives_the_same_estimator_and_leaves_that_of_torch_alone():
    x, y = IRIS
    first = SnapshotClassifier(**QUICK).fit(x, y).predict_proba(x)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = SnapshotClassifier(**QUICK).fit(x, y).predict_proba(x)
    other = SnapshotClassifier(**{**QUICK, "random_state": 1}).fit(x, y).predict_proba(x)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(again, first)
    assert not np.allclose(other, first)


def test_an_estimator_works_in_pipelines_searches_cross_validation_and_clones():
    x, y = IRIS
    pipeline = make_pipeline(StandardScaler(), SnapshotClassifier(**QUICK))
    assert cross_val_score(pipeline, x, y, cv=2).shape == (2,)
    search = GridSearchCV(pipeline, {"snapshotclassifier__cycles": np.array([1, 2])}, cv=2).fit(x, y)
    best = (1, 2)[np.argmax(search.cv_results_["mean_test_score"])]
    assert search.best_params_["snapshotclassifier__cycles"] == best
    assert clone(pipeline)[-1].get_params() == pipeline[-1].get_params()


@pytest.mark.parametrize("estimator", [SnapshotClassifier(**QUICK), SnapshotRegressor(**QUICK)])
def test_a_fitted_estimator_survives_pickle(estimator):
    x, y = IRIS
    fitted = clone(estimator).fit(x, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(x), fitted.predict(x))


def test_a_module_can_be_a_function_its_class_or_an_instance_that_is_copied():
    x, y = IRIS
    instance = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
    before = {name: tensor.clone() for name, tensor in instance.state_dict().items()}
    for module in (nn.Linear, lambda features, classes: nn.Linear(features, classes).double(), instance):
        classifier = SnapshotClassifier(module, **{**QUICK, "epochs": 30}, lr=0.05).fit(x, y)
        assert classifier.score(x, y) > 0.85
        assert classifier.ensemble_.preprocess is None
    torch.testing.assert_close(instance.state_dict(), before, rtol=0, atol=0)


def test_several_targets_of_different_scale_are_predicted_together():
    x, y = make_regression(200, 5, n_targets=2, noise=1.0, random_state=0)
    y = y * [1.0, 1e4] + [1e5, 0.0]
    regressor = SnapshotRegressor(epochs=50, random_state=0).fit(x[:150], y[:150])
    assert regressor.predict(x).shape == y.shape
    reference = Ridge(alpha=1e-3).fit(x[:150], y[:150]).score(x[150:], y[150:])  # the data is linear
    assert regressor.score(x[150:], y[150:]) > 0.95 * reference


def test_classes_may_be_strings():
    x, y = IRIS
    names = np.array(["virginica", "setosa", "versicolor"])
    classifier = SnapshotClassifier(**{**QUICK, "epochs": 30}, lr=0.03).fit(x, names[y])
    assert classifier.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert classifier.score(x, names[y]) > 0.9


def test_names_of_features_are_kept_and_compared():
    pandas = pytest.importorskip("pandas")
    x, y = IRIS
    frame = pandas.DataFrame(x, columns=["a", "b", "c", "d"])
    classifier = SnapshotClassifier(**QUICK).fit(frame, y)
    assert classifier.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[["b", "a", "c", "d"]])


def test_the_defaults_predict_well():
    x, y = IRIS
    assert cross_val_score(SnapshotClassifier(random_state=0), x, y, cv=3).mean() > 0.92


def test_an_estimator_that_is_not_fitted_says_so():
    with pytest.raises(NotFittedError):
        SnapshotClassifier().predict_proba(IRIS[0])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"cycles": 0}, "cycles must be an int of at least 1, got 0"),
        ({"epochs": 2.5}, "epochs must be an int of at least 1, got 2.5"),
        ({"batch_size": -1}, "batch_size must be an int of at least 1, got -1"),
        ({"hidden": (8, 0)}, "hidden[1] must be an int of at least 1, got 0"),
        ({"hidden": 100}, "hidden must be a tuple with one width per layer, such as (100,), got 100"),
        ({"cycles": 5, "epochs": 3}, "epochs must be at least cycles=5, got 3: raise epochs or lower cycles"),
        ({"last": 6}, "last must be None or between 1 and cycles=5, got 6"),
        ({"last": 0}, "last must be None or between 1 and cycles=5, got 0"),
        ({"device": "cuda:99"}, "device must be available, got cuda:99, but torch cannot use it ("),
        (
            {"optimizer": "sgd"},
            "optimizer must be a function of the parameters and lr, got 'sgd': pass torch.optim.SGD",
        ),
        ({"lr": 0.0}, "lr must be a finite number greater than 0, got 0.0"),
        (
            {"module": "mlp"},
            "module must be a torch module or a function (features, outputs) that builds one, got 'mlp'",
        ),
        ({"module": lambda features, outputs: 3}, "that builds one, got 3"),
        ({"module": nn.Linear(4, 2)}, "module must return (rows, 3), got (1, 2) for one row: change its last layer"),
        ({"module": nn.LSTM(4, 3)}, "module must return (rows, 3), got a tuple for one row: change its last layer"),
        (
            {"module": nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), "cycles": 1, "epochs": 1},
            "module must return logits, got probabilities: remove its last softmax",
        ),
    ],
)
def test_a_parameter_that_breaks_a_rule_is_named(parameters, message):
    with pytest.raises(ArgumentError) as raised:
        SnapshotClassifier(**parameters).fit(*IRIS)
    assert message in str(raised.value)


def test_a_regressor_rejects_a_device_that_torch_cannot_use():
    with pytest.raises(ArgumentError, match="device must be available, got cuda:99, but torch cannot use it"):
        SnapshotRegressor(device="cuda:99").fit(*load_diabetes(return_X_y=True))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(150), "sample_weight must be greater than zero for at least one row, got zero for all rows"),
        (np.ones((150, 2)), r"sample_weight must have one value per row, got the shape \(150, 2\)"),
        (np.ones(3), "inconsistent numbers of samples"),
        (-np.ones(150), "Negative values in data passed to sample_weight"),
    ],
)
def test_weights_that_break_a_rule_are_rejected(weights, message):
    with pytest.raises(ValueError, match=message):
        SnapshotClassifier(**QUICK).fit(*IRIS, sample_weight=weights)


def test_a_row_of_weight_zero_is_not_used():
    x, y = IRIS
    weights = np.r_[np.zeros(50), np.ones(100)]
    spoiled = np.where(weights[:, None] > 0, x, 1e9)
    first, second = (SnapshotClassifier(**QUICK).fit(rows, y, sample_weight=weights) for rows in (x, spoiled))
    np.testing.assert_array_equal(first.predict_proba(x), second.predict_proba(x))


def test_the_code_of_the_page_runs():
    names = {"__name__": "page"}
    page = (ROOT / "docs/how-to/scikit-learn.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(block, names)
    assert names["classifier"].ensemble_.last == 3
    assert names["classifier"].score(names["X_test"], names["y_test"]) > 0.9
    assert names["search"].best_score_ > 0.9


def test_the_benchmark_compares_three_predictors_on_five_data_sets(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tabular.py", "--splits", "2", "--epochs", "5"])
    runpy.run_path(str(ROOT / "bench/tabular.py"), run_name="__main__")
    first, *lines = capsys.readouterr().out.splitlines()
    assert "n = 2 splits" in first
    rows = [line for line in lines if "±" in line]
    assert len(rows) == 4 * 2 + 1  # error and NLL of four classifiers, and the error of one regressor
    assert all(len(re.findall(r"[+-][\d.]+ ± [\d.]+", row)) == 3 for row in rows)
