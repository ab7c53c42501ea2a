"""Cautions: warnings about a run that is probably not what the user intends."""

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from .errors import shortened
from .schedule import Schedule, missing_cycles
from .snapshots import Snapshots
from .weights import tensors

log = logging.getLogger("snapens")


@dataclass
class Progress:
    """The progress of a run. A separate object, because the warning of an early end is logged without the ensembler."""

    completed: int = 0
    closed: bool = False
    failed: bool = False
    """Whether the last call of `step()` rejected the weights: that error already says why the run ended."""


def early_end(progress: Progress, schedule: Schedule, place: str, process: int) -> None:
    """Warn of a run that ends before its last cycle; `process` is the id of the process that trained it."""
    missing = missing_cycles(schedule, progress.completed)
    began_and_stopped = progress.completed > 0 and not progress.closed and not progress.failed
    if missing and began_and_stopped and process == os.getpid():  # a forked process may end at any time
        log.warning(
            "the run in %s ended after step %d of %d, without a snapshot of %s: resume it from a checkpoint. If the "
            "training was complete, total_steps is not its number of optimizer steps. close() prevents this warning",
            place,
            progress.completed,
            schedule.total_steps,
            missing,
        )


def untrained(model: nn.Module, optimizer: Optimizer, stored: Collection[str]) -> None:
    """Warn of stored parameters that require gradients, but that are not in the optimizer."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    live = {name: tensor for name, tensor in tensors(model).items() if name in stored}
    if left := [name for name, tensor in live.items() if tensor.requires_grad and id(tensor) not in held]:
        log.warning(
            "the optimizer does not hold %s: these parameters are not trained, or another optimizer trains them "
            "without this schedule. Build the optimizer from model.parameters(), or freeze these parameters with "
            "requires_grad_(False)",
            shortened(left, 3),
        )


def unstored(model: nn.Module, optimizer: Optimizer, stored: Collection[str]) -> None:
    """Warn of parameters that the optimizer trains, but that no snapshot stores."""
    names = {id(tensor): name for name, tensor in tensors(model).items()}
    held = (parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad)
    trained = {names.get(id(one), "a parameter that is not in state_dict()") for one in held}
    if lost := sorted(trained - set(stored)):
        log.warning(
            "no snapshot stores %s, which the optimizer trains, so they are not part of the members. Return them from "
            "keep, or register their modules, such as in nn.ModuleList (parameters of the loss need neither)",
            shortened(lost, 3),
        )


def repeated(snapshots: Snapshots) -> None:
    """Warn of a snapshot that is equal to the one before it."""
    *_, before, last = (0, *snapshots.steps)
    if before and snapshots.entries(before) == snapshots.entries(last):  # equal entries have equal content
        log.warning(
            "the snapshot of step %d is equal to that of step %d: check that the optimizer trains the model and, if "
            "keep is an average, that it is updated before step()",
            last,
            before,
        )
