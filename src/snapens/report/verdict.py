"""The verdict: from evidence to sentences, each with its reasons. Every threshold stands here, with why."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from .evidence import Difference, Evidence

CHANCE = 0.025
"""How often chance alone may have a difference counted: one in forty looks; several looks share it."""
STILL_IMPROVING = 0.05
"""A share of its error that a late cycle takes off: below it, longer cycles would hardly change the last snapshot."""
FLAT_POINTS, FLAT_SHARE = 1.0, 0.1
"""The most that the error rises on a line without a bump: so many points, or that share of the last snapshot's error if
that is less; where the noise of few images is more, nothing is said."""
SAME_ANSWERS = 0.25
"""Answers that differ from the last snapshot's, in shares of its error. Neighbours after the last drop of a standard
schedule differ by 0.08 to 0.22, those of a cyclic run by 0.32 to 0.79, models that share nothing by 0.92 to 1.02 (the
demo's ten seeds, the ledger's 13 runs). A weak early snapshot differs by its own errors too."""
_STANDARD_ERRORS = 2.0  # about CHANCE, for what is no paired difference


@dataclass(frozen=True)
class Finding:
    """One thing to know about a run: in short, with its reasons, and what to do about it if anything."""

    kind: Literal["good", "note", "warning"]
    says: str
    because: str


def verdict(evidence: Evidence, under_standard: Difference | None = None) -> list[Finding]:
    """What the numbers amount to; rules without a finding say nothing, and most wait until a run is finished.

    `under_standard` is the test error of one model on the standard schedule, if there is one, less the ensemble's.
    """
    if guess := _guess(evidence):
        return [guess]
    whole = (partial(_standard, under=under_standard), _less_likely, _enough, _hurtful, _short, _alike, _valley)
    rules = (_gain, _unfinished) if evidence.missing else (_gain, *whole)
    return [finding for rule in rules if (finding := rule(evidence)) is not None]


def basis(evidence: Evidence) -> str:
    """What the findings rest on, and so what they may be used for."""
    if evidence.part == "held_out":
        return (
            f"From {evidence.examples:,} training images that were held out: what is chosen here may be reported on "
            "the test set. What is said of the test error is of test images."
        )
    return (
        f"A description of the {evidence.examples:,} test images, not a choice: no images were held out. To choose m "
        "or the number of cycles, train with --held-out N and ask again."
    )


def _guess(evidence: Evidence) -> Finding | None:
    """Has anything been learned; if not, nothing else is worth a word."""
    learned, error = evidence.learned, evidence.ensemble_errors[-1]
    if learned.chance <= CHANCE:
        return None
    because = (
        f"Always answering the most frequent class errs on {_percent(error + learned.value)} of {_images(evidence)}, "
        f"the ensemble on {_percent(error)}. Look at the training loss, the learning rate and the labels first."
    )
    return Finding("warning", "The ensemble is no better than a guess, as far as these images tell.", because)


def _gain(evidence: Evidence) -> Finding | None:
    """Does the ensemble pay at all: all members against the last alone."""
    members, gain = len(evidence.member_errors), evidence.gain
    if members == 1:
        return Finding("note", "There is one snapshot: nothing to average.", "Train with more cycles for an ensemble.")
    how = "fewer" if gain.value >= 0 else "more"
    because = (
        f"The last snapshot errs on {_percent(evidence.member_errors[-1])} of {_images(evidence)}, all {members} "
        f"together on {_percent(evidence.ensemble_errors[-1])}: {_points(abs(gain.value))} {how}, with a paired "
        f"standard error of {_points(gain.standard_error)}."
    )
    if gain.chance <= CHANCE:
        return Finding("good", "The ensemble errs less than its last snapshot, beyond noise.", because)
    if (-gain).chance <= CHANCE:
        return Finding("warning", "The ensemble errs more than its last snapshot.", because)
    return Finding("note", "The ensemble errs no less than its last snapshot, as far as these images tell.", because)


def _standard(evidence: Evidence, under: Difference | None) -> Finding | None:
    """Does the ensemble pay: all members against what else one could have trained."""
    if under is None or len(evidence.member_errors) == 1:
        return None
    how = "below" if under.value >= 0 else "above"
    because = (
        f"Its test error is {_points(abs(under.value))} {how} that model's, with a paired standard error of "
        f"{_points(under.standard_error)}. Another seed of either may give another answer."
    )
    one = "one model trained as long on the standard schedule"
    if under.chance <= CHANCE:
        return Finding("good", f"The ensemble errs less than {one}, beyond noise.", because)
    if (-under).chance <= CHANCE:
        return Finding("warning", f"The ensemble errs more than {one}.", because)
    return Finding("note", f"The ensemble and {one} err alike, as far as the test images tell.", because)


def _unfinished(evidence: Evidence) -> Finding:
    there = len(evidence.member_errors)
    says = f"The run is unfinished: {there} of {there + evidence.missing} snapshots."
    return Finding("note", says, "Early snapshots always look worse than they will; the rest is said at the end.")


def _less_likely(evidence: Evidence) -> Finding | None:
    """The ensemble's probabilities may be worse where its choices are not: weak members make it unsure."""
    last, together = evidence.nll
    if together - last <= _STANDARD_ERRORS * evidence.nll_noise:
        return None
    because = (
        f"NLL {together:.4f} instead of {last:.4f}, with a paired standard error of {evidence.nll_noise:.4f}. "
        "Calibrate it on images that were held out before its probabilities are used."
    )
    return Finding("warning", "The ensemble's probabilities are worse than its last snapshot's.", because)


def _enough(evidence: Evidence) -> Finding | None:
    """The smallest m within one paired standard error of the best."""
    members = len(evidence.over_best)
    if members == 1:
        return None
    best = min(range(members), key=lambda k: evidence.ensemble_errors[k])
    enough = next(k for k, difference in enumerate(evidence.over_best) if difference.value <= difference.standard_error)
    said = f"{_percent(evidence.ensemble_errors[enough])} with {_the_last(enough + 1)}"
    if enough == best == 0:
        because = f"{said}: no more of them are better."
    elif enough == best:
        because = f"{said} is the best, and every smaller m is worse by more than one paired standard error."
        if enough == members - 1:
            return Finding("note", f"It takes all {members}.", because)
    else:
        because = (
            f"{said}, {_percent(evidence.ensemble_errors[best])} with the best m = {best + 1}: within one paired "
            f"standard error ({_points(evidence.over_best[enough].standard_error)})."
        )
    return Finding("note", f"m = {enough + 1} of {members} is enough.", because)


def _hurtful(evidence: Evidence) -> Finding | None:
    """Early snapshots that hurt: some smaller m beats all together beyond noise."""
    members = len(evidence.over_fewer)
    chance = CHANCE / max(members - 1, 1)
    better = [k for k, difference in enumerate(evidence.over_fewer) if difference.chance <= chance]
    if not better:
        return None
    best = min(better, key=lambda k: evidence.ensemble_errors[k])
    gain = evidence.over_fewer[best]
    early = "The first snapshot hurts" if members - best == 2 else f"The first {members - best - 1} snapshots hurt"
    because = (
        f"{_percent(evidence.ensemble_errors[best])} with {_the_last(best + 1)}, "
        f"{_percent(evidence.ensemble_errors[-1])} with all {members}: {_points(gain.value)} more, with a paired "
        f"standard error of {_points(gain.standard_error)}. "
    )
    if evidence.part == "held_out":
        because += "Leave them out, or give them longer cycles."
    else:
        because += "Longer cycles would help them; before they are left out, look at images that were held out."
    return Finding("warning", f"{early} the ensemble.", because)


def _short(evidence: Evidence) -> Finding | None:
    """Cycles too short: the last one, or the later half of them on average, still took off much of the error."""
    after = evidence.member_errors[-1]
    for cycles, progress in evidence.progress.items():
        before = evidence.member_errors[-1 - cycles]
        if progress.chance > CHANCE or progress.value < cycles * STILL_IMPROVING * before:
            continue
        if evidence.restarts[-cycles] != "warm":  # one of them did not begin where the one before ended
            continue
        those, each = ("The last cycle", "") if cycles == 1 else (f"The last {cycles} cycles", " a cycle")
        because = (
            f"{those} took the error of one snapshot from {_percent(before)} to {_percent(after)}, by "
            f"{100 * progress.value / before / cycles:.0f} % of it{each} "
            f"(standard error {_points(progress.standard_error)})"
        )
        loss, least = (evidence.losses[k] for k in (-1 - cycles, -1)) if evidence.losses else (0.0, 0.0)
        if least < loss:
            because += f", and the training loss at the minimum from {loss:.3g} to {least:.3g}"
        advice = "Take fewer cycles, or more epochs: snapshots that have not converged make a weaker ensemble."
        return Finding("warning", "The cycles are too short: snapshots were still improving.", f"{because}. {advice}")
    return None


def _alike(evidence: Evidence) -> Finding | None:
    """Snapshots whose answers are nearly the last one's: they add little."""
    alike = _same(evidence)
    if not alike:
        return None
    most = max(evidence.disagreements[k - 1] for k in alike)
    flat = [k for k in alike if k in _flat(evidence)]
    because = (
        f"The answers differ on {_percent(most)} of the images or fewer, where the last one errs on "
        f"{_percent(evidence.member_errors[-1])}"
    )
    if flat:
        because += f", and on the line from {_listed(flat)} to the last one the error has no bump: one minimum"
    advice = {
        "none": "A standard schedule ends in one minimum: cycles are what makes snapshots differ.",
        "warm": "Restarts at a higher learning rate, or longer cycles, take the weights further.",
        "fresh": "They share no weights: the task leaves members little to differ in.",
    }[evidence.restarts[alike[-1] - 1]]
    return Finding("warning", f"{_snapshots(alike)} nearly the last one again.", f"{because}. {advice}")


def _valley(evidence: Evidence) -> Finding | None:
    """Snapshots joined to the last one by a line without a bump, though their answers differ."""
    joined = [k for k in _flat(evidence) if k not in _same(evidence)]
    if not joined:
        return None
    because = (
        "With BatchNorm's statistics estimated anew, the test error on the straight line to the last snapshot is never "
        f"more than {_flat_points(evidence):.2f} points above the line between the errors of its ends."
    )
    if evidence.gain.chance <= CHANCE:
        because += " Their answers differ all the same, which is what the ensemble uses."
    if all(evidence.lines[k].dip_points > 0 for k in joined):
        because += " Half-way the one network errs less than at either end: an average of the weights may do well too."
    return Finding("note", f"{_snapshots(joined)} in one valley with the last one.", because)


def _same(evidence: Evidence) -> list[int]:
    """Members whose answers are the last one's, but for few, beyond the noise of counting them."""
    most, n = SAME_ANSWERS * evidence.member_errors[-1], evidence.examples
    if most == 0:  # all that are right agree
        return []
    noise = [_STANDARD_ERRORS * (share * (1 - share) / n) ** 0.5 for share in evidence.disagreements]
    return [k for k, share in enumerate(evidence.disagreements, 1) if share + noise[k - 1] <= most]


def _flat(evidence: Evidence) -> list[int]:
    """Members whose line to the last one has no bump, where there are images enough to see one."""
    most = _flat_points(evidence)
    if 100 * _STANDARD_ERRORS * evidence.test_noise > most:
        return []
    return [k for k, line in sorted(evidence.lines.items()) if line.bump_points <= most]


def _flat_points(evidence: Evidence) -> float:
    return min(FLAT_POINTS, 100 * FLAT_SHARE * evidence.member_errors[-1])


def _images(evidence: Evidence) -> str:
    return f"the {evidence.examples:,} {evidence.part.replace('_', '-')} images"


def _snapshots(members: Sequence[int]) -> str:
    """The subject of a sentence, and its verb."""
    if len(members) == 1:
        return f"Snapshot {members[0]} is"
    return f"Snapshots {_listed(members)} are"


def _listed(members: Sequence[int]) -> str:
    *some, last = map(str, members)
    return f"{', '.join(some)} and {last}" if some else last


def _the_last(m: int) -> str:
    return "the last one alone" if m == 1 else f"the last {m}"


def _percent(error: float) -> str:
    return f"{100 * error:.2f} %"


def _points(difference: float) -> str:
    return f"{100 * difference:.2f} points"
