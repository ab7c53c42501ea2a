"""Measure the errors of weights on the lines between a run's snapshots, for the paper's Figure 5."""

from torch import Tensor

from ... import metrics
from ...snapshots import Snapshots
from ...weights import set_tensors
from ..records.curves import Between, Line
from .step import TrainingStep

LAST_SHARE = tuple(k / 10 for k in range(11))
_ESTIMATION_EXAMPLES = 10_000


def between(step: TrainingStep, snapshots: Snapshots) -> Between:
    """The lines from each earlier snapshot to the last one; the network ends with the weights of the last one."""
    *earlier, last = snapshots.steps
    end, lines = snapshots.load(last), []
    for number, other in enumerate(earlier, 1):
        start = snapshots.load(other)
        interpolated, estimated = [], []
        for share in LAST_SHARE:
            set_tensors(step.kept, {name: _mixed(end[name], start[name], share) for name in end})
            interpolated.append(_percent_wrong(step))
            step.estimate_statistics(_ESTIMATION_EXAMPLES)
            estimated.append(_percent_wrong(step))
        lines.append(Line(number, tuple(interpolated), tuple(estimated)))
    set_tensors(step.kept, end)
    return Between(LAST_SHARE, tuple(lines), "training images, augmented")


def _mixed(end: Tensor, start: Tensor, last_share: float) -> Tensor:
    if not end.is_floating_point():  # a count
        return end
    return last_share * end + (1 - last_share) * start


def _percent_wrong(step: TrainingStep) -> float:
    test = step.placed.data.test
    outputs = step.log_probabilities(step.placed.batches(test))
    return round(100 * float(metrics.error(outputs.float().exp().numpy(), test.labels)), 4)
