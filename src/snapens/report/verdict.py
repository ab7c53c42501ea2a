"""The verdict: findings from the evidence, each with its reason. This file has all thresholds, with their reasons."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ..combine.held_out import FEW_EXAMPLES
from ..quality import Difference
from .evidence import Evidence

CHANCE = 0.025
"""The largest p-value of a significant difference; it is divided among several comparisons for one finding."""
STILL_IMPROVING = 0.05
"""The smallest relative reduction of the error by a late cycle that is reported. Below it, longer cycles would hardly
change the last snapshot."""
FLAT_POINTS, FLAT_SHARE = 1.0, 0.1
"""A line has no bump if the error rises by at most this many points, or by at most this share of the last snapshot's
error if that is less. If the noise is larger, because there are few images, there is no finding."""
SAME_ANSWERS = 0.25
"""The share of predictions that differ from the last snapshot's, divided by its error, below which snapshots count as
nearly identical. Neighbours after the last drop of a standard schedule have 0.08 to 0.22, neighbours in a cyclic run
0.32 to 0.79, independent models 0.92 to 1.02 (the demo's ten seeds, the ledger's 13 runs). The errors of a weak early
snapshot also count as differences."""
FAR_BETTER = 0.2
"""The relative reduction of a guess's error from which a difference that may be noise means too few examples, rather
than a network that has learned nothing."""
_STANDARD_ERRORS = 2.0  # about CHANCE, for values that are not paired differences


@dataclass(frozen=True)
class Finding:
    """One conclusion about a run, with its reason and, where possible, advice."""

    kind: Literal["good", "note", "warning"]
    text: str
    reason: str


def verdict(evidence: Evidence, under_standard: Difference | None = None) -> list[Finding]:
    """The findings that follow from the evidence; most rules apply to finished runs only.

    `under_standard` is the test error of a single model with the standard schedule, if there is one, minus that of the
    ensemble.
    """
    unfinished = [_unfinished(evidence)] if evidence.missing else []
    if guess := _guess(evidence):
        return [guess, *unfinished]
    finished = (partial(_standard, under=under_standard), _probabilities, _enough, _hurtful, _short, _alike, _valley)
    rules = (_gain,) if unfinished else (_gain, *finished)
    return [finding for rule in rules if (finding := rule(evidence)) is not None] + unfinished


def _guess(evidence: Evidence) -> Finding | None:
    """Whether anything was learned; if not, there is no other finding."""
    learned, error = evidence.learned, evidence.ensemble_errors[-1]
    if learned.chance <= CHANCE:
        return None
    subject = "the ensemble" if len(evidence.member_errors) > 1 else "the only snapshot"
    guess = error + learned.value
    reason = (
        f"On {_examples(evidence)}, always predicting the most frequent class has an error of "
        f"{_percent(guess)}, and {subject} has {_percent(error)}. "
    )
    if learned.value >= FAR_BETTER * guess > 0:
        text = f"There are too few {evidence.noun} to tell whether {subject} is better than guessing."
        return Finding("note", text, f"{reason}This difference may be chance. Test on more {evidence.noun}.")
    text = f"{subject.capitalize()} is not measurably better than guessing."
    return Finding("warning", text, f"{reason}Check the training loss, the learning rate and the labels first.")


def _gain(evidence: Evidence) -> Finding | None:
    """Whether the ensemble is better than its last snapshot."""
    members, gain = len(evidence.member_errors), evidence.gain
    if members == 1 and evidence.missing:
        return None
    if members == 1:
        text = "There is only one snapshot, so there is nothing to average."
        return Finding("note", text, "Train with more cycles to get an ensemble.")
    reason = (
        f"On {_examples(evidence)}, the error of the last snapshot is {_percent(evidence.member_errors[-1])} and the "
        f"error of all {members} together is {_percent(evidence.ensemble_errors[-1])}: {_lower(gain)}, with a paired "
        f"standard error of {_points(gain.standard_error)}."
    )
    return _compared(gain, "its last snapshot", reason)


def _standard(evidence: Evidence, under: Difference | None) -> Finding | None:
    """Whether the ensemble is better than a model with the standard schedule."""
    if under is None or len(evidence.member_errors) == 1:
        return None
    reason = (
        f"The ensemble's test error is {_lower(under)} than that of the single model, with a paired standard error of "
        f"{_points(under.standard_error)}. Other seeds may give another result."
    )
    return _compared(under, "a single model trained equally long with the standard schedule", reason)


def relation(gain: Difference) -> str:
    """How the ensemble compares with another predictor, from the other error minus the ensemble's."""
    if gain.chance <= CHANCE:
        return "better than"
    if (-gain).chance <= CHANCE:
        return "worse than"
    if gain.value == 0:
        return "as accurate as"
    return "not measurably better than" if gain.value > 0 else "not better than"


def _compared(gain: Difference, other: str, reason: str) -> Finding:
    found = relation(gain)
    kinds: dict[str, Literal["good", "warning"]] = {"better than": "good", "worse than": "warning"}
    beyond = ", beyond noise" if found in kinds else ""
    return Finding(kinds.get(found, "note"), f"The ensemble is {found} {other}{beyond}.", reason)


def _unfinished(evidence: Evidence) -> Finding:
    found = len(evidence.member_errors)
    text = f"The run is not finished: {found} of {found + evidence.missing} snapshots exist{'s' * (found == 1)}."
    reason = "Early snapshots are worse than later ones. To continue the run, repeat its command with --resume."
    return Finding("note", text, reason)


def _probabilities(evidence: Evidence) -> Finding | None:
    """Whether the ensemble's probabilities are worse, or better without a better error.

    Weak members can lower its confidence too much.
    """
    last, together = evidence.nll
    noise, of_last = _STANDARD_ERRORS * evidence.nll_noise, "those of its last snapshot"
    reason = (
        f"The NLL is {together:.4f} instead of {last:.4f}, with a paired standard error of {evidence.nll_noise:.4f}."
    )
    if last - together > noise and evidence.gain.chance > CHANCE:
        return Finding("good", f"The ensemble's probabilities are better than {of_last}.", reason)
    if together - last <= noise:
        return None
    if evidence.calibrated:
        advice = "The result of the fitted combination, below, shows whether it corrects this."
    else:
        advice = f"Calibrate the ensemble on held-out {evidence.noun} before you use its probabilities."
    return Finding("warning", f"The ensemble's probabilities are worse than {of_last}.", f"{reason} {advice}")


def _enough(evidence: Evidence) -> Finding | None:
    """The smallest m within one paired standard error of the best m, if there are enough examples to find it."""
    members = len(evidence.over_best)
    if members == 1 or evidence.examples < FEW_EXAMPLES:
        return None
    best = min(range(members), key=lambda k: evidence.ensemble_errors[k])
    enough = next(k for k, difference in enumerate(evidence.over_best) if difference.value <= difference.standard_error)
    error = f"The error is {_percent(evidence.ensemble_errors[enough])} with {_the_last(enough + 1)}"
    if enough == best == 0:
        reason = f"{error}, and more snapshots do not lower it."
    elif enough == best:
        reason = f"{error}. Every smaller m is worse by more than one paired standard error."
        if enough == members - 1:
            return Finding("note", f"All {members} snapshots are needed.", reason)
    else:
        reason = (
            f"{error} and {_percent(evidence.ensemble_errors[best])} with the best m = {best + 1}; the difference is "
            f"within one paired standard error ({_points(evidence.over_best[enough].standard_error)})."
        )
    return Finding("note", f"m = {enough + 1} of {members} is enough.", reason)


def _hurtful(evidence: Evidence) -> Finding | None:
    """Whether early snapshots make the ensemble worse: a smaller m is better than all members, beyond noise."""
    members = len(evidence.over_fewer)
    chance = CHANCE / max(members - 1, 1)
    better = [k for k, difference in enumerate(evidence.over_fewer) if difference.chance <= chance]
    if not better:
        return None
    best = min(better, key=lambda k: evidence.ensemble_errors[k])
    gain, early = evidence.over_fewer[best], members - best - 1
    reason = (
        f"The error is {_percent(evidence.ensemble_errors[best])} with {_the_last(best + 1)} and "
        f"{_percent(evidence.ensemble_errors[-1])} with all {members}: {_points(gain.value)} higher, with a paired "
        f"standard error of {_points(gain.standard_error)}. "
    )
    if evidence.part == "held_out":
        reason += "Leave the early snapshots out, or use longer cycles."
    else:
        reason += (
            f"Longer cycles would improve the early snapshots. Before you leave them out, use held-out {evidence.noun}."
        )
    subject = "The first snapshot makes" if early == 1 else f"The first {early} snapshots make"
    return Finding("warning", f"{subject} the ensemble worse.", reason)


def _short(evidence: Evidence) -> Finding | None:
    """Whether cycles are too short: the last one, or the later half on average, still reduced the error a lot."""
    after = evidence.member_errors[-1]
    for cycles, progress in evidence.progress.items():
        before = evidence.member_errors[-1 - cycles]
        if progress.chance > CHANCE or progress.value < cycles * STILL_IMPROVING * before:
            continue
        if evidence.restarts[-cycles] != "warm":  # one of these cycles did not continue the previous one
            continue
        subject, each = ("The last cycle", "") if cycles == 1 else (f"The last {cycles} cycles", " per cycle")
        reason = (
            f"{subject} reduced the error of a snapshot from {_percent(before)} to {_percent(after)}, a relative "
            f"reduction of {100 * progress.value / before / cycles:.0f} %{each} "
            f"(standard error {_points(progress.standard_error)})"
        )
        loss, least = (evidence.losses[k] for k in (-1 - cycles, -1)) if evidence.losses else (0.0, 0.0)
        if least < loss:
            reason += f", and the training loss at the minimum from {loss:.3g} to {least:.3g}"
        advice = "Use fewer cycles or more epochs: snapshots that have not converged make a weaker ensemble."
        return Finding("warning", "The cycles are too short: snapshots were still improving.", f"{reason}. {advice}")
    return None


def _alike(evidence: Evidence) -> Finding | None:
    """Snapshots whose predictions are nearly those of the last one, so that they add little."""
    alike = _same(evidence)
    if not alike:
        return None
    most = max(evidence.disagreements[k - 1] for k in alike)
    flat = [k for k in alike if k in _flat(evidence)]
    reason = (
        f"At most {_percent(most)} of the predictions differ from those of the last snapshot, whose error is "
        f"{_percent(evidence.member_errors[-1])}."
    )
    if flat:
        reason += f" The error has no bump on the line from {_snapshots(flat).lower()} to the last one."
    advice = {
        "none": "A standard schedule ends in one minimum; cycles make snapshots differ.",
        "warm": "Restarts at a higher learning rate, or longer cycles, move the weights further.",
        "fresh": "These snapshots share no weights, so the task leaves little room for different predictions.",
    }[evidence.restarts[alike[-1] - 1]]
    return Finding(
        "warning", f"{_snapshots(alike, 'is', 'are')} nearly identical to the last one.", f"{reason} {advice}"
    )


def _valley(evidence: Evidence) -> Finding | None:
    """Snapshots with a line to the last one that has no bump, although their predictions differ."""
    joined = [k for k in _flat(evidence) if k not in _same(evidence)]
    if not joined:
        return None
    reason = (
        "With re-estimated BatchNorm statistics, the test error on the straight line to the last snapshot is never "
        f"more than {_flat_points(evidence):.2f} points above the straight line between the errors of its ends."
    )
    if evidence.gain.chance <= CHANCE:
        reason += " The predictions differ nevertheless, and the ensemble gains from that."
    if all(evidence.lines[k].dip_points > 0 for k in joined):
        reason += " Half-way, the error is lower than at both ends, so an average of the weights may also be good."
    return Finding("note", f"{_snapshots(joined, 'is', 'are')} in the same valley as the last one.", reason)


def _same(evidence: Evidence) -> list[int]:
    """Members whose predictions differ from those of the last one in few images, beyond the noise of the count."""
    most, n = SAME_ANSWERS * evidence.member_errors[-1], evidence.examples
    if most == 0:  # members without errors agree
        return []
    noise = [_STANDARD_ERRORS * (share * (1 - share) / n) ** 0.5 for share in evidence.disagreements]
    return [k for k, share in enumerate(evidence.disagreements, 1) if share + noise[k - 1] <= most]


def _flat(evidence: Evidence) -> list[int]:
    """Members whose line to the last one has no bump, if there are enough images to see one."""
    most = _flat_points(evidence)
    if 100 * _STANDARD_ERRORS * evidence.test_noise > most:
        return []
    return [k for k, line in sorted(evidence.lines.items()) if line.bump_points <= most]


def _flat_points(evidence: Evidence) -> float:
    return min(FLAT_POINTS, 100 * FLAT_SHARE * evidence.member_errors[-1])


def _examples(evidence: Evidence) -> str:
    return f"the {evidence.examples:,} {evidence.part.replace('_', '-')} {evidence.noun}"


def _snapshots(members: Sequence[int], one: str = "", several: str = "") -> str:
    """The subject of a sentence, with its verb for one and for several snapshots."""
    *some, last = map(str, members)
    return f"Snapshots {', '.join(some)} and {last} {several}".strip() if some else f"Snapshot {last} {one}".strip()


def _the_last(m: int) -> str:
    return "the last snapshot alone" if m == 1 else f"the last {m}"


def _lower(difference: Difference) -> str:
    """How much lower the ensemble's error is, from the other error minus the ensemble's."""
    return f"{_points(abs(difference.value))} {'lower' if difference.value >= 0 else 'higher'}"


def _percent(error: float) -> str:
    return f"{100 * error:.2f} %"


def _points(difference: float) -> str:
    return f"{100 * difference:.2f} points"
