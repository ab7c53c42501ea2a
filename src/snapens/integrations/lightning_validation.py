"""Validation: the error and NLL of the ensemble so far, for the loggers of a Lightning `Trainer`."""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch

from ..errors import ArgumentError
from ..loaders import check_repeatable
from ..prediction import Prediction

log = logging.getLogger("snapens")


class Validation:
    """Evaluates the ensemble on the validation loader of a Trainer. After a failure, it warns once and stays off."""

    def __init__(self, inputs: Callable[[Any], Any], targets: Callable[[Any], Any]) -> None:
        self._inputs, self._targets, self._failed = inputs, targets, False

    def log(self, trainer: Any, module: Any, callback: Any) -> None:
        """Send `snapens/val_error` and `snapens/val_nll` to the loggers and to `trainer.callback_metrics`."""
        batches = Batches(trainer, module)
        if self._failed or not batches:
            return
        problem, values = "", (0.0, 0.0)
        try:
            values = self._values(trainer, batches, callback)
        except Exception as error:  # of the user's forward(), data or functions: a metric must not end the training
            problem = f"{type(error).__name__}: {error}"
        if not trainer.strategy.reduce_boolean_decision(not problem):
            self._failed = True
            if problem:
                log.warning(
                    "the validation metrics of the ensemble are not logged (%s): pass functions of a batch as inputs= "
                    "and targets=, or validate=False",
                    problem,
                )
            return
        mean = trainer.strategy.reduce(torch.tensor(values, device=trainer.strategy.root_device), reduce_op="mean")
        found = dict(zip(("snapens/val_error", "snapens/val_nll"), mean.cpu(), strict=True))
        trainer.callback_metrics.update(found)
        for logger in trainer.loggers:
            logger.log_metrics({name: float(value) for name, value in found.items()}, step=callback.ensembler.completed)

    def _values(self, trainer: Any, batches: "Batches", callback: Any) -> tuple[float, float]:
        with batches.as_in_validation(), trainer.precision_plugin.val_step_context():
            ensemble = callback.ensemble(resident=False)
            outputs = ensemble.outputs(batches, inputs=self._inputs, targets=self._targets)
        score = Prediction.of(outputs).score
        return score.error, score.nll


class Batches:
    """The validation batches as Lightning passes them to a module; they can be read once per member."""

    def __init__(self, trainer: Any, module: Any) -> None:
        if trainer.enable_validation and trainer.val_dataloaders is None:  # before the first validation
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.setup_data()
            trainer.training = True
        self._trainer, self._module, self._loader = trainer, module, trainer.val_dataloaders
        limits = trainer.num_val_batches
        limit = limits[0] if isinstance(limits, list) and limits else limits
        self._limit = limit if isinstance(limit, int) else None  # None: all batches

    def __bool__(self) -> bool:
        return self._loader is not None and self._limit != 0

    def __iter__(self) -> Iterator[Any]:
        for batch in islice(self._loader, self._limit):
            batch = self._trainer.precision_plugin.convert_input(batch)
            batch = self._module._on_before_batch_transfer(batch, dataloader_idx=0)
            yield self._trainer.strategy.batch_to_device(batch, dataloader_idx=0)

    @contextmanager
    def as_in_validation(self) -> Iterator[None]:
        """Set the Trainer to validation for the hooks of the module, and restore the random state afterwards."""
        if isinstance(self._loader, (list, tuple, dict)):
            raise ArgumentError(f"the Trainer must have one validation loader, got {len(self._loader)}")
        check_repeatable(self._loader)
        device = self._trainer.strategy.root_device
        python, numpy = random.getstate(), np.random.get_state()
        self._trainer.validating = True
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                yield
        finally:
            self._trainer.training = True
            random.setstate(python)
            np.random.set_state(numpy)
