"""Snapshot ensembles on scikit-learn's own data sets, at an equal number of epochs: `python bench/tabular.py`.

For each data set and split, the script compares four predictors with the same layers, epochs and batch size:

1. the ensemble of five snapshots,
2. its own last snapshot,
3. one cosine cycle over all epochs (`cycles=1`),
4. `MLPClassifier` or `MLPRegressor` on standardised data, with scikit-learn's default rate and penalty.

The table shows the mean score of the ensemble over the splits, and the mean of the ensemble's score minus that of each
other predictor, with its standard error (paired by split). A negative difference means that the ensemble is better.
Scores are the test error in percent and the NLL in nats, or the root mean squared error. The splits share rows, so the
standard errors hold for these data sets only. The defaults of the estimators were chosen on other splits (seeds from
100), by the score of the ensemble.
"""

import argparse
import os
import platform
import time
import warnings
from collections.abc import Iterator

import numpy as np
import sklearn
import torch
from sklearn import datasets
from sklearn.base import is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss, root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from snapens.integrations.sklearn import SnapshotClassifier, SnapshotRegressor

LOADERS = {
    "digits": datasets.load_digits,
    "breast cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
    "diabetes": datasets.load_diabetes,
}
OTHERS = ("last snapshot", "one cosine", "scikit-learn's MLP")


def estimators(regression: bool, seed: int, epochs: int | None) -> tuple:
    """The snapshot ensemble, one cosine, and scikit-learn's network with the same layers, epochs and batch size."""
    ours, theirs = (SnapshotRegressor, MLPRegressor) if regression else (SnapshotClassifier, MLPClassifier)
    options = {} if epochs is None else {"epochs": epochs}
    ensemble, cosine = ours(random_state=seed, **options), ours(random_state=seed, cycles=1, **options)
    network = theirs(
        hidden_layer_sizes=ensemble.hidden,
        batch_size=ensemble.batch_size,
        max_iter=ensemble.epochs,
        tol=0.0,
        n_iter_no_change=ensemble.epochs,  # use all epochs, as the others do
        random_state=seed,
    )
    network = make_pipeline(StandardScaler(), network)
    return (
        ensemble,
        cosine,
        TransformedTargetRegressor(network, transformer=StandardScaler()) if regression else network,
    )


def scores(estimator, x: np.ndarray, y: np.ndarray) -> list[float]:
    if is_classifier(estimator):
        return [100 * (1 - estimator.score(x, y)), log_loss(y, estimator.predict_proba(x))]
    return [root_mean_squared_error(y, estimator.predict(x))]


def measured(x: np.ndarray, y: np.ndarray, regression: bool, seed: int, epochs: int | None) -> tuple[list, list]:
    """The scores of the four predictors on one split, and the seconds of the three fits."""
    x_train, x_test, y_train, y_test = train_test_split(
        x, y, test_size=0.25, random_state=seed, stratify=None if regression else y
    )
    found, seconds = [], []
    for k, estimator in enumerate(estimators(regression, seed, epochs)):
        start = time.perf_counter()
        estimator.fit(x_train, y_train)
        seconds.append(time.perf_counter() - start)
        found.append(scores(estimator, x_test, y_test))
        if k == 0:
            estimator.ensemble_.last = 1
            found.append(scores(estimator, x_test, y_test))
    return found, seconds


def rows(splits: int, epochs: int | None) -> Iterator[str]:
    for name, load in LOADERS.items():
        x, y = load(return_X_y=True)
        regression = name == "diabetes"
        found, seconds = zip(*(measured(x, y, regression, seed, epochs) for seed in range(splits)), strict=True)
        table = np.array(found)  # (splits, predictors, scores)
        ratio = np.median([ours / theirs for ours, _, theirs in seconds])
        for k, score in enumerate(["RMSE"] if regression else ["error %", "NLL"]):
            differences = table[:, :1, k] - table[:, 1:, k]
            errors = differences.std(axis=0, ddof=1) / np.sqrt(splits)
            means = differences.mean(axis=0).round(3) + 0.0  # not -0.0
            cells = [f"{mean:+.3f} ± {error:.3f}" for mean, error in zip(means, errors, strict=True)]
            cells = [f"{name}, {score}", f"{table[:, 0, k].mean():.3f}", *cells, f"{ratio:.2f} ×"]
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=20, help="train/test splits per data set, with seeds from 0")
    parser.add_argument("--epochs", type=int, default=None, help="epochs instead of the estimators' default")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # scikit-learn's network: all epochs were used
    versions = f"torch {torch.__version__}, scikit-learn {sklearn.__version__}"
    hardware = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s)"
    print(f"n = {options.splits} splits (75 % training, 25 % test); {versions}; {hardware}\n")
    print(f"| data set, score | ensemble | {' | '.join(f'− {name}' for name in OTHERS)} | fit time / MLP's |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in rows(options.splits, options.epochs):
        print(row, flush=True)


if __name__ == "__main__":
    main()
