"""Evidence: the numbers that the findings are based on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..lab.records.curves import Between, Line
from ..quality import Difference, Quality
from .account import Account, Part

Restart = Literal["none", "warm", "fresh"]


@dataclass(frozen=True)
class Evidence:
    """The basis of the findings. Errors are fractions; members are ordered oldest first, ensembles by m = 1 … M."""

    part: Part
    examples: int
    noun: str
    """The noun for the examples: images, or examples."""
    missing: int
    """Snapshots that an unfinished run has not taken yet."""
    own_loop: bool
    """Whether a loop of the user's own trained the members, so that the advice is not about commands of the lab."""
    restarts: tuple[Restart, ...]
    """How training continued from each earlier member to the last: fresh weights, warm restarts, or no restarts."""
    member_errors: tuple[float, ...]
    ensemble_errors: tuple[float, ...]
    learned: Difference
    """The error of always predicting the most frequent class, minus that of all members together."""
    gain: Difference
    """The last snapshot minus all members together."""
    nll: tuple[float, float]
    """The NLL of the last snapshot, and that of all members together."""
    nll_noise: float
    """The paired standard error of the difference of the two."""
    progress: Mapping[int, Difference]
    """Number of last cycles (1, half of all) -> the error of the snapshot before them minus that of the last one."""
    losses: tuple[float, ...]
    """The training loss just before each minimum; empty if the log lacks one of them."""
    over_fewer: tuple[Difference, ...]
    """All members together minus the last m."""
    over_best: tuple[Difference, ...]
    """The last m minus the best m."""
    disagreements: tuple[float, ...]
    """The share of images on which each earlier member and the last one choose different classes."""
    lines: Mapping[int, Line]
    """Earlier member, counted from 1 -> the errors on the line from it to the last member; empty if not measured."""
    tested: bool
    """Whether there are outputs for test examples."""
    test_noise: float
    """The standard error of the last member's test error."""
    calibrated: bool
    """Whether the run has a combination with a temperature."""

    @classmethod
    def of(
        cls, part: Part, quality: Quality, account: Account, between: Between | None, *, calibrated: bool = False
    ) -> "Evidence":
        """From the quality of the members on one part of the images."""
        labels, alone, together = quality.labels, quality.alone.wrong, quality.last.wrong
        members, errors = len(alone), together.mean(-1)
        best = int(errors.argmin())
        losses = [account.trace.loss_at(step) for step in account.steps]
        nll = quality.last.nll[[0, -1]]
        return cls(
            part=part,
            examples=len(labels),
            noun=account.noun,
            missing=account.missing,
            own_loop=account.recipe is None,
            restarts=tuple(_restarts(account, k) for k in range(members - 1)),
            member_errors=tuple(alone.mean(-1).tolist()),
            ensemble_errors=tuple(errors.tolist()),
            learned=Difference.of(labels != np.bincount(labels).argmax(), together[-1]),
            gain=Difference.of(alone[-1], together[-1]),
            nll=(float(nll[0].mean()), float(nll[1].mean())),
            nll_noise=float((nll[1] - nll[0]).std() / np.sqrt(len(labels))),
            progress={k: Difference.of(alone[-1 - k], alone[-1]) for k in sorted({1, members // 2}) if 0 < k < members},
            losses=tuple(loss for loss in losses if loss is not None) if None not in losses else (),
            over_fewer=tuple(Difference.of(together[-1], fewer) for fewer in together),
            over_best=tuple(Difference.of(fewer, together[best]) for fewer in together),
            disagreements=tuple(quality.disagreement[-1, :-1].tolist()),
            lines={line.snapshot: line for line in between.lines} if between else {},
            tested=account.part == "test",
            test_noise=float(account.wrong[0].std() / np.sqrt(account.wrong.shape[1])),
            calibrated=calibrated,
        )


def _restarts(account: Account, member: int) -> Restart:
    if account.recipe is None:  # the ensembler keeps the weights at a restart
        return "warm"
    method = account.recipe.method
    if method.kind == "single":
        return "none"
    return "fresh" if any(map(method.begins_fresh, range(member + 1, len(account.members)))) else "warm"
