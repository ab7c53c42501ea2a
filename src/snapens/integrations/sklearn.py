"""SnapshotClassifier and SnapshotRegressor: snapshot ensembles as scikit-learn estimators."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from itertools import pairwise
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from ..activation import Activation, are_probabilities
from ..copies import check_device
from ..ensemble import Ensemble
from ..ensembler import SnapshotEnsembler
from ..errors import ArgumentError
from ..extras import package
from ..schedule import CyclicCosine

package("sklearn", "sklearn")  # if it is missing, the error names a command that installs it

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

Array = NDArray[Any]
ADAMW = partial(torch.optim.AdamW, weight_decay=0.5, fused=True)  # weights shrink by lr * 0.5 per step
ROWS_PER_PREDICTION = 4096  # a larger table is predicted in several batches


class Affine(nn.Module):
    """`x * factor + shift` per column: it standardises features or converts predictions to the unit of the targets."""

    factor: Tensor
    shift: Tensor

    def __init__(self, factor: Array, shift: Array) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))
        self.register_buffer("shift", torch.tensor(shift))

    def forward(self, x: Tensor) -> Tensor:
        """The converted rows, of shape (rows, columns)."""
        return x * self.factor + self.shift


class _SnapshotEstimator(BaseEstimator):
    def __init__(
        self,
        module: nn.Module | Callable[[int, int], nn.Module] | None = None,
        *,
        hidden: tuple[int, ...] = (100,),
        cycles: int = 5,
        epochs: int = 100,
        batch_size: int = 32,
        optimizer: Callable[..., torch.optim.Optimizer] | None = None,
        lr: float = 0.01,
        weight_decay: float | None = None,
        last: int | None = None,
        random_state: Any = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.module = module
        self.hidden = hidden
        self.cycles = cycles
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.last = last
        self.random_state = random_state
        self.device = device

    def _fit(
        self,
        data: tuple[Array, Array, Array],
        outputs: int,
        losses: Callable[[Tensor, Tensor], Tensor],
        activation: Activation,
    ) -> Self:
        """Train on rows (rows, features), targets and weights; `losses` returns one value per row."""
        self._check_parameters()
        check_device(self.device)
        device = torch.device(self.device)
        with _seeded(check_random_state(self.random_state).randint(np.iinfo(np.int32).max), device):
            model = self._model(data[0].shape[1], outputs).to(device)
            build = ADAMW if self.optimizer is None else self.optimizer
            decay = {} if self.weight_decay is None else {"weight_decay": self.weight_decay}
            optimizer = build(model.parameters(), lr=self.lr, **decay)
            rows, targets, weights = (_tensor(array, model).to(device) for array in data)
            prepare = None
            if self.module is None:
                scaler = StandardScaler().fit(data[0], sample_weight=data[2])
                prepare = Affine(1 / scaler.scale_, -scaler.mean_ / scaler.scale_).to(device)
                rows = prepare(rows)
            _check_outputs(model, rows, outputs, classifies=activation == "softmax")
            batches = math.ceil(len(rows) / self.batch_size)
            schedule = CyclicCosine(int(self.epochs) * batches, int(self.cycles))
            ensembler = SnapshotEnsembler(model.train(), optimizer, schedule)
            for _ in range(self.epochs):
                order = torch.randperm(len(rows)).to(device)
                # tensor_split gives batches of nearly equal size: BatchNorm needs batches that are not too small
                parts = (tensor[order].tensor_split(batches) for tensor in (rows, targets, weights))
                for x, y, w in zip(*parts, strict=True):
                    loss = (losses(model(x), y) * w).mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    ensembler.step()
        if isinstance(activation, Affine):
            activation = activation.to(device)
        last = int(self.cycles if self.last is None else self.last)
        self.ensemble_: Ensemble = ensembler.ensemble(activation=activation, preprocess=prepare, last=last)
        return self

    def _outputs(self, X: Any) -> Array:
        """The outputs of the ensemble, of shape (rows, outputs)."""
        check_is_fitted(self)
        rows = _tensor(validate_data(self, X, dtype=np.float64, reset=False), self.ensemble_.members[-1])
        return np.asarray(self.ensemble_.predict(torch.split(rows, ROWS_PER_PREDICTION)).double())

    def _model(self, features: int, outputs: int) -> nn.Module:
        if self.module is None:
            widths = (features, *map(int, self.hidden))
            layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
            return nn.Sequential(*layers, nn.Linear(widths[-1], outputs)).double()
        if isinstance(self.module, nn.Module):
            return deepcopy(self.module)
        built = self.module(features, outputs) if callable(self.module) else self.module
        if not isinstance(built, nn.Module):
            raise ArgumentError(
                f"module must be a torch module or a function (features, outputs) that builds one, got {built!r}"
            )
        return built

    def _check_parameters(self) -> None:
        if not isinstance(self.hidden, (tuple, list)):
            raise ArgumentError(f"hidden must be a tuple with one width per layer, such as (100,), got {self.hidden!r}")
        counts = {"cycles": self.cycles, "epochs": self.epochs, "batch_size": self.batch_size}
        counts |= {f"hidden[{k}]": width for k, width in enumerate(self.hidden)}
        for name, value in counts.items():
            if not isinstance(value, Integral) or value < 1:
                raise ArgumentError(f"{name} must be an int of at least 1, got {value!r}")
        if self.epochs < self.cycles:
            raise ArgumentError(
                f"epochs must be at least cycles={self.cycles}, got {self.epochs}: raise epochs or lower cycles"
            )
        if self.last is not None and not (isinstance(self.last, Integral) and 1 <= self.last <= self.cycles):
            raise ArgumentError(f"last must be None or between 1 and cycles={self.cycles}, got {self.last!r}")
        if self.optimizer is not None and not callable(self.optimizer):
            raise ArgumentError(
                f"optimizer must be a function of the parameters and lr, got {self.optimizer!r}: pass torch.optim.SGD"
            )
        if not 0 < self.lr < math.inf:
            raise ArgumentError(f"lr must be a finite number greater than 0, got {self.lr!r}")


class SnapshotClassifier(ClassifierMixin, _SnapshotEstimator):
    """A classifier that averages the probabilities of its snapshots.

    Training costs as much as that of one network: the rate follows `cycles` cosines over `epochs` epochs, and the
    network at the end of each cycle is a member. `fit` checks the parameters:

    - `module`: None for a multilayer perceptron with `hidden` units per layer, which standardises the features; a
      function (features, outputs) that builds a module, such as its class; or a module, which is copied. Your own
      module receives the features unchanged, in its own dtype, and returns scores (rows, classes).
    - `cycles`, `epochs`, `batch_size`: the number of snapshots, the number of passes over the data in all cycles
      together, and the number of rows per step.
    - `optimizer`: a function (parameters, lr=), such as `torch.optim.SGD`; None for AdamW with a weight decay of 0.5.
    - `lr`: the peak of the rate in each cycle.
    - `weight_decay`: passed to the optimizer, unless it is None.
    - `last`: predict with the last m snapshots; None for all.
    - `random_state`: an int makes `fit` reproducible; `fit` does not change the random state of torch.
    - `device`: where to train and predict.

    After `fit`, `ensemble_` is the `Ensemble`, a torch module of raw features, and `classes_` are the classes.

    Examples:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> classifier = SnapshotClassifier(cycles=3, epochs=30, random_state=0).fit(X, y)
        >>> classifier.predict_proba(X[:2]).shape
        (2, 3)
        >>> classifier.score(X, y) > 0.95
        True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on the rows of X (rows, features) with one class per row in y."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, indices = np.unique(y, return_inverse=True)
        data = _weighted(X, indices, sample_weight)
        activation: Activation = "softmax" if len(self.classes_) > 1 else torch.ones_like  # a single class is certain
        return self._fit(data, len(self.classes_), partial(cross_entropy, reduction="none"), activation)

    def predict_proba(self, X: Any) -> Array:
        """The probabilities (rows, classes), in the order of `classes_`: the mean of the members' softmax."""
        return self._outputs(X)

    def predict_log_proba(self, X: Any) -> Array:
        """The logarithm of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[best])


class SnapshotRegressor(RegressorMixin, _SnapshotEstimator):
    """A regressor that averages the predictions of its snapshots.

    The parameters are those of `SnapshotClassifier`. The loss is the squared error of the standardised targets. Your
    own module returns (rows, outputs) for standardised targets; `ensemble_` converts predictions to the unit of y.

    Examples:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> regressor = SnapshotRegressor(cycles=3, epochs=30, random_state=0).fit(X, y)
        >>> regressor.predict(X[:2]).shape
        (2,)
        >>> regressor.score(X, y) > 0.5
        True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on the rows of X (rows, features) with targets y, of shape (rows,) or (rows, outputs)."""
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        x, targets, weights = _weighted(X, y.reshape(len(y), -1).astype(np.float64), sample_weight)
        scaler = StandardScaler().fit(targets, sample_weight=weights)
        data = x, scaler.transform(targets), weights
        return self._fit(data, targets.shape[1], _squared_errors, Affine(scaler.scale_, scaler.mean_))

    def predict(self, X: Any) -> Array:
        """The predicted targets, of shape (rows,), or (rows, outputs) for several outputs."""
        found = self._outputs(X)
        return found[:, 0] if found.shape[1] == 1 else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random state on the CPU and the device, and restore it afterwards."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed all GPUs
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


def _weighted(x: Array, y: Array, sample_weight: Any) -> tuple[Array, Array, Array]:
    """The rows of positive weight, their targets, and their weights with a mean of 1."""
    if sample_weight is None:
        return x, y, np.ones(len(x))
    options: dict[str, Any] = {"ensure_non_negative": True, "input_name": "sample_weight"}
    weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, **options)
    if weights.ndim != 1:
        raise ArgumentError(f"sample_weight must have one value per row, got the shape {weights.shape}")
    check_consistent_length(x, weights)
    if not (used := weights > 0).any():
        raise ArgumentError("sample_weight must be greater than zero for at least one row, got zero for all rows")
    return x[used], y[used], weights[used] / weights[used].mean()


def _tensor(array: Array, model: nn.Module) -> Tensor:
    """A copy of an array: class indices keep their dtype, other values get the dtype of the model."""
    return torch.tensor(array, dtype=None if array.dtype.kind == "i" else next(model.parameters()).dtype)


def _squared_errors(found: Tensor, targets: Tensor) -> Tensor:
    return mse_loss(found, targets, reduction="none").mean(1)


@torch.no_grad()
def _check_outputs(model: nn.Module, rows: Tensor, outputs: int, classifies: bool) -> None:
    found = model.eval()(rows[:1])
    if not isinstance(found, Tensor) or found.shape != (1, outputs):
        shown = tuple(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ArgumentError(f"module must return (rows, {outputs}), got {shown} for one row: change its last layer")
    if classifies and are_probabilities(model(rows[:2]), -1):  # two rows, because the logits of one can sum to 1
        raise ArgumentError("module must return logits, got probabilities: remove its last softmax")
