"""Evaluation: computes the outputs of a run's members, and stores them in its folder."""

import logging
import math

import torch
from torch import Tensor

from ... import metrics
from ...snapshots import Snapshots
from ...weights import set_tensors
from ..data.protocol import Part
from ..records import format_1
from ..records.run import Run
from .log import diverged
from .step import TrainingStep

log = logging.getLogger("snapens")


class Evaluation:
    """Evaluates the kept network of a step on the test examples and, if there are any, on the held-out examples."""

    def __init__(self, run: Run, step: TrainingStep) -> None:
        self._run, self._step, data = run, step, step.placed.data
        self._parts: dict[str, Part] = {"test": data.test} | ({"held_out": data.held_out} if data.held_out else {})

    def add(self, completed: int, snapshot: str) -> float:
        """Store the outputs of the current weights, for a snapshot that is committed afterwards; their test error."""
        outputs = self.outputs()
        for part, (found, _) in outputs.items():
            if found.isnan().any():  # the losses that were logged can still be finite
                where = f"on the {part.replace('_', '-')} examples at step {completed}"
                raise diverged(math.nan, where, len(self._run.snapshots.steps))
        self._run.add_outputs(completed, outputs, snapshot)
        test, labels = outputs["test"]
        return float(metrics.error(test.float().exp().numpy(), labels.numpy()))

    def restore(self, snapshots: Snapshots) -> None:
        """Recompute the outputs of members that are missing or damaged; this changes the network's weights."""
        format_1.adopt_outputs(self._run, self._parts)
        intact = set.intersection(*(self._run.intact_outputs(part) for part in self._parts))
        for step in snapshots.steps:
            if step not in intact:
                log.warning("%s has no intact outputs of step %d: they are recomputed", self._run.path, step)
                set_tensors(self._step.kept, snapshots.load(step))
                self._run.add_outputs(step, self.outputs(), replace=not intact)
                intact.add(step)

    def outputs(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Log-probabilities and labels of each part, for the current weights."""
        batches = self._step.placed.batches
        found = {
            name: (self._step.log_probabilities(batches(part)), torch.from_numpy(part.labels))
            for name, part in self._parts.items()
        }
        self._step.release()
        return found
