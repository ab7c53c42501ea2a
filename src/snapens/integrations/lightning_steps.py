"""OptimizerSteps: counts the steps of one optimizer of a Lightning module."""

from collections.abc import Callable
from typing import Any

from torch.optim import LBFGS, Optimizer

from ..errors import ArgumentError


class OptimizerSteps:
    """Calls `count` once for every attempted step of an optimizer.

    It does so as late as possible, because the module and its callbacks may still change weights after a step: in
    `settle`, at the end of a batch, or before the next step if a batch has several.
    """

    def __init__(self, optimizer: Optimizer, count: Callable[[], object]) -> None:
        self._optimizer, self._count = optimizer, count
        self._pending, self._attempted = 0, False
        self._handles: list[Any] = [
            optimizer.register_step_pre_hook(lambda *_: self._count_pending()),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def attempt(self, optimizer: Optimizer) -> None:
        """Note that an optimizer is about to step; a gradient scaler may skip the step, which counts too."""
        if optimizer is self._optimizer:
            # L-BFGS evaluates its closure, which calls this, several times per step; no gradient scaler supports it
            self._pending += self._attempted and not isinstance(optimizer, LBFGS)
            self._attempted = True

    def settle(self) -> None:
        """Count all steps so far."""
        self._pending, self._attempted = self._pending + self._attempted, False
        self._count_pending()

    def close(self) -> None:
        """Remove the hooks from the optimizer."""
        for handle in self._handles:
            handle.remove()

    def _after_step(self, *_: Any) -> None:
        self._pending, self._attempted = self._pending + 1, False

    def _count_pending(self) -> None:
        while self._pending:
            self._count()
            self._pending -= 1


def expected_steps(trainer: Any, module: Any) -> int:
    """The number of optimizer steps that a Trainer expects; an error if it cannot know this number."""
    expected, reason = trainer.estimated_stepping_batches, ""
    if not 0 < expected < float("inf"):
        reason = f"trainer.estimated_stepping_batches is {expected}"
    elif any(type(callback).__name__ == "GradientAccumulationScheduler" for callback in trainer.callbacks):
        reason = "GradientAccumulationScheduler changes the steps per epoch"
    elif not module.automatic_optimization and trainer.max_steps != -1 and len(trainer.optimizers) > 1:
        reason = f"max_steps={trainer.max_steps} counts the steps of all optimizers"
    if reason:
        raise ArgumentError(
            f"total_steps must be given if the Trainer does not know it, got None ({reason}): pass the number of steps"
        )
    return int(expected)
