"""Each rule of the verdict, on both sides of its threshold."""

from dataclasses import replace

import pytest

from snapens.lab.records.curves import Line
from snapens.report.evidence import Difference, Evidence
from snapens.report.verdict import FLAT_POINTS, FLAT_SHARE, SAME_ANSWERS, STILL_IMPROVING, basis, verdict


def by(more, fewer=0):
    """A difference on 10,000 images."""
    return Difference(more, fewer, 10_000)


NOTHING = by(100, 100)
EVIDENCE = Evidence(
    part="test",
    examples=10_000,
    missing=0,
    restarts=("warm", "warm"),
    member_errors=(0.30, 0.30, 0.30),
    ensemble_errors=(0.30, 0.28, 0.27),
    learned=by(7000, 100),
    gain=by(400, 100),
    nll=(1.0, 0.9),
    nll_noise=0.01,
    progress={1: NOTHING},
    losses=(0.3, 0.2, 0.1),
    over_fewer=(by(100, 400), by(100, 200), by(0)),
    over_best=(by(400, 100), by(200, 100), by(0)),
    disagreements=(0.25, 0.20),
    lines={},
    test_noise=0.0045,
)


def said(**changes):
    return {finding.says: finding for finding in verdict(replace(EVIDENCE, **changes))}


def line(snapshot, bump=0.0, dip=0.0):
    """From 30 to 24 %, with so much more than 27 half-way; or so much less than the lower end."""
    half = 24 - dip if dip else 27 + bump
    return Line(snapshot, (30, 90, 24), (30, half, 24))


def lines(*of):
    return {found.snapshot: found for found in of}


def test_a_healthy_run_gains_and_takes_all_its_members():
    assert list(said()) == ["The ensemble errs less than its last snapshot, beyond noise.", "It takes all 3."]


def test_a_run_at_chance_is_said_to_be_and_nothing_else():
    (finding,) = said(learned=by(59, 41), ensemble_errors=(0.9, 0.9, 0.897), missing=1).values()  # chance 0.044
    assert (finding.kind, finding.says) == (
        "warning",
        "The ensemble is no better than a guess, as far as these images tell.",
    )
    assert finding.because.startswith(
        "Always answering the most frequent class errs on 89.88 % of the 10,000 test images, the ensemble on 89.70 %."
    )
    assert len(said(learned=by(61, 39))) == 2


@pytest.mark.parametrize(
    ("gain", "kind", "words"),
    [
        # scipy's binomtest has 0.018 for 61 of 100 or more, and 0.044 for 59
        (by(61, 39), "good", "errs less than its last snapshot, beyond noise"),
        (by(59, 41), "note", "errs no less than its last snapshot, as far as these images tell"),
        (by(4, 0), "note", "errs no less than its last snapshot"),  # a sixteenth, though twice its standard error
        (by(41, 59), "note", "errs no less than its last snapshot"),
        (by(39, 61), "warning", "errs more than its last snapshot"),
    ],
)
def test_a_gain_counts_beyond_noise(gain, kind, words):
    first = next(iter(said(gain=gain).values()))
    assert first.kind == kind
    assert words in first.says


@pytest.mark.parametrize(
    ("under", "kind", "words", "reason"),
    [
        (by(61, 39), "good", "errs less than one model trained as long", "0.22 points below that model's"),
        (by(59, 41), "note", "and one model trained as long on the standard schedule err alike", "0.18 points below"),
        (by(41, 59), "note", "err alike, as far as the test images tell", "0.18 points above"),
        (by(39, 61), "warning", "errs more than one model trained as long", "paired standard error of 0.10 points"),
    ],
)
def test_the_standard_schedule_is_beaten_beyond_noise(under, kind, words, reason):
    found = verdict(EVIDENCE, under)[1]
    assert found.kind == kind
    assert words in found.says
    assert reason in found.because
    assert "standard schedule" not in "".join(finding.says for finding in verdict(replace(EVIDENCE, missing=1), under))
    two = replace(EVIDENCE, member_errors=(0.3, 0.3), ensemble_errors=(0.3, 0.27), over_fewer=(NOTHING, by(0)))
    assert words in verdict(replace(two, over_best=(NOTHING, by(0)), disagreements=(0.2,)), under)[1].says


@pytest.mark.parametrize(("together", "worse"), [(1.021, True), (1.0199, False), (0.9, False)])
def test_probabilities_are_worse_beyond_two_standard_errors(together, worse):
    found = said(nll=(1.0, together))
    assert ("The ensemble's probabilities are worse than its last snapshot's." in found) is worse
    if worse:
        because = found["The ensemble's probabilities are worse than its last snapshot's."].because
        assert because.startswith(
            "NLL 1.0210 instead of 1.0000, with a paired standard error of 0.0100. Calibrate it on images that"
        )


def test_reasons_name_the_numbers():
    because = next(iter(said().values())).because
    assert because == (
        "The last snapshot errs on 30.00 % of the 10,000 test images, all 3 together on 27.00 %: 3.00 points fewer, "
        "with a paired standard error of 0.22 points."
    )
    held_out = next(iter(said(part="held_out", examples=200).values())).because
    assert held_out.startswith("The last snapshot errs on 30.00 % of the 200 held-out images, all 3")
    worse = next(iter(said(gain=by(100, 400), ensemble_errors=(0.30, 0.28, 0.33)).values())).because
    assert "33.00 %: 3.00 points more" in worse


@pytest.mark.parametrize(
    ("over_best", "words"),
    [
        # the standard error of 55 against 45 is 0.1 points, less a hair
        ((by(400, 100), by(54, 45), by(0)), "m = 2 of 3 is enough."),
        ((by(400, 100), by(55, 45), by(0)), "It takes all 3."),
        ((by(51, 49), by(0), by(60, 40)), "m = 1 of 3 is enough."),
    ],
)
def test_enough_is_the_smallest_m_within_one_standard_error_of_the_best(over_best, words):
    errors = tuple(0.27 + difference.value for difference in over_best)
    found = said(over_best=over_best, ensemble_errors=errors)
    assert words in found
    if words == "m = 1 of 3 is enough.":
        assert found[words].because == (
            "27.02 % with the last one alone, 27.00 % with the best m = 2: within one paired standard error "
            "(0.10 points)."
        )


def test_the_last_alone_is_enough_where_it_is_the_best():
    found = said(over_best=(by(0), by(200, 100), by(300, 100)), ensemble_errors=(0.3, 0.31, 0.32))
    assert found["m = 1 of 3 is enough."].because == "30.00 % with the last one alone: no more of them are better."


# two looks share the chance: scipy has 0.0105 for 62 of 100 or more, 0.0176 for 61
@pytest.mark.parametrize(("more", "hurts"), [(62, True), (61, False)])
def test_early_snapshots_hurt_where_fewer_are_better_beyond_noise(more, hurts):
    worse = by(more, 100 - more)
    found = said(over_fewer=(by(100, 400), worse, by(0)), ensemble_errors=(0.30, 0.266, 0.27))
    assert ("The first snapshot hurts the ensemble." in found) is hurts
    found = said(over_fewer=(worse, by(0), by(0)), ensemble_errors=(0.266, 0.27, 0.27))
    assert ("The first 2 snapshots hurt the ensemble." in found) is hurts
    if hurts:
        assert "26.60 % with the last one alone, 27.00 % with all 3: 0.24 points more" in "".join(
            finding.because for finding in found.values()
        )


def test_of_several_m_that_beat_all_together_the_best_is_named():
    better = by(300, 100)
    found = said(over_fewer=(better, better, by(0)), ensemble_errors=(0.26, 0.25, 0.27))
    assert found["The first snapshot hurts the ensemble."].because.startswith("25.00 % with the last 2,")


@pytest.mark.parametrize(
    ("part", "words"), [("test", "look at images that were held out"), ("held_out", "Leave them out")]
)
def test_snapshots_are_left_out_only_by_images_that_were_held_out(part, words):
    found = said(over_fewer=(by(0), by(300, 100), by(0)), part=part)
    assert words in found["The first snapshot hurts the ensemble."].because


SHORT = "The cycles are too short: snapshots were still improving."
ENOUGH = round(STILL_IMPROVING * 0.3 * 10_000)


@pytest.mark.parametrize(
    ("progress", "restarts", "short"),
    [
        (by(ENOUGH + 100, 100), "warm", True),
        (by(ENOUGH + 99, 100), "warm", False),  # too small a share
        (by(ENOUGH + 8000, 8000), "warm", False),  # noise
        (by(ENOUGH + 100, 100), "none", False),
        (by(ENOUGH + 100, 100), "fresh", False),
    ],
)
def test_cycles_are_too_short_where_the_last_one_still_took_off_much(progress, restarts, short):
    found = said(progress={1: progress}, restarts=("fresh", restarts))
    assert (SHORT in found) is short
    if short:
        assert "from 30.00 % to 30.00 %, by 5 % of it" in found[SHORT].because
        assert "training loss at the minimum from 0.2 to 0.1" in found[SHORT].because
        assert "training loss" not in said(progress={1: progress}, losses=())[SHORT].because


@pytest.mark.parametrize(
    ("progress", "restarts", "short"),
    [
        (by(2 * ENOUGH + 100, 100), ("warm", "warm"), True),
        (by(2 * ENOUGH + 98, 100), ("warm", "warm"), False),
        (by(2 * ENOUGH + 100, 100), ("fresh", "warm"), False),
    ],
)
def test_cycles_are_too_short_where_the_later_half_took_off_much_on_average(progress, restarts, short):
    found = said(progress={1: NOTHING, 2: progress}, restarts=restarts)
    assert (SHORT in found) is short
    if short:
        assert found[SHORT].because.startswith("The last 2 cycles took the error of one snapshot from 30.00 % to 30.00")
        assert "by 5 % of it a cycle" in found[SHORT].because
        assert "training loss at the minimum from 0.3 to 0.1" in found[SHORT].because


def test_snapshots_that_answer_alike_are_told():
    # of 30 % errors a quarter is 7.5 %; the noise of counting 7 % of 10,000 is 0.51 points
    found = said(disagreements=(SAME_ANSWERS * 0.3 - 0.0050, SAME_ANSWERS * 0.3 - 0.0052))
    assert found["Snapshot 2 is nearly the last one again."].kind == "warning"
    because = found["Snapshot 2 is nearly the last one again."].because
    assert "one minimum" not in because
    assert because.startswith("The answers differ on 6.98 % of the images or fewer, where the last one errs on 30.00 %")
    flat = said(disagreements=(0.02, 0.03), lines=lines(line(1, bump=50), line(2)))
    assert "differ on 3.00 % of the images or fewer" in flat["Snapshots 1 and 2 are nearly the last one again."].because
    because = flat["Snapshots 1 and 2 are nearly the last one again."].because
    assert "on the line from 2 to the last one the error has no bump: one minimum" in because


def test_members_that_are_always_right_are_not_alike():
    assert not any("nearly the last" in words for words in said(disagreements=(0.0, 0.0), member_errors=(0.1, 0, 0)))


@pytest.mark.parametrize(
    ("restarts", "advice"),
    [
        ("none", "cycles are what makes snapshots differ"),
        ("warm", "Restarts at a higher"),
        ("fresh", "share no weights"),
    ],
)
def test_what_to_do_about_snapshots_that_are_alike_depends_on_how_they_were_trained(restarts, advice):
    found = said(disagreements=(0.2, 0.01), restarts=("fresh", restarts))
    assert advice in found["Snapshot 2 is nearly the last one again."].because


def test_a_line_without_a_bump_is_told_apart_from_like_answers():
    both = lines(line(1, bump=FLAT_POINTS - 0.01), line(2, bump=FLAT_POINTS + 0.01))
    assert "Snapshot 1 is in one valley with the last one." in said(lines=both)
    assert not any("valley" in words for words in said(lines=lines(line(1, bump=10), line(2, bump=10))))
    assert not any("valley" in words for words in said(lines=lines(line(2)), disagreements=(0.5, 0.01)))
    for gain, useful in ((by(400, 100), True), (NOTHING, False)):
        found = said(lines=both, gain=gain)["Snapshot 1 is in one valley with the last one."]
        assert ("differ all the same, which is what the ensemble uses" in found.because) is useful


def test_what_is_a_bump_depends_on_the_error():
    small = {"member_errors": (0.05, 0.05, 0.05), "test_noise": 0.002}
    for bump, flat in ((100 * FLAT_SHARE * 0.05 - 0.01, True), (100 * FLAT_SHARE * 0.05 + 0.01, False)):
        found = said(lines=lines(line(1, bump=bump)), **small)
        assert ("Snapshot 1 is in one valley with the last one." in found) is flat
        if flat:
            assert "never more than 0.50 points" in found["Snapshot 1 is in one valley with the last one."].because


def test_an_average_of_weights_is_thought_of_where_the_line_dips_below_both_ends():
    says = "Snapshots 1 and 2 are in one valley with the last one."
    assert "average of the weights" in said(lines=lines(line(1, dip=1), line(2, dip=0.5)))[says].because
    assert "average of the weights" not in said(lines=lines(line(1, dip=1), line(2)))[says].because


def test_too_few_images_to_see_a_bump_say_nothing_of_valleys():
    # 0.6 points of noise: a line may rise by more than a point unseen
    assert not any("valley" in words for words in said(lines=lines(line(1), line(2)), test_noise=0.006))
    alike = said(disagreements=(0.01, 0.01), lines=lines(line(1)), test_noise=0.006)
    assert not any("one minimum" in finding.because for finding in alike.values())


def test_one_snapshot_is_no_ensemble():
    alone = replace(
        EVIDENCE,
        restarts=(),
        member_errors=(0.3,),
        ensemble_errors=(0.3,),
        progress={},
        over_fewer=(by(0),),
        over_best=(by(0),),
        disagreements=(),
    )
    assert [finding.says for finding in verdict(alone)] == ["There is one snapshot: nothing to average."]


def test_of_an_unfinished_run_little_is_said():
    found = said(missing=22, over_fewer=(by(0), by(300, 100), by(0)), progress={1: by(ENOUGH + 100, 100)})
    assert list(found)[1:] == ["The run is unfinished: 3 of 25 snapshots."]


def test_the_basis_says_what_the_findings_may_be_used_for():
    assert basis(EVIDENCE).startswith("A description of the 10,000 test images, not a choice")
    held_out = basis(replace(EVIDENCE, part="held_out"))
    assert held_out.startswith("From 10,000 training images that were held out")
    assert held_out.endswith("What is said of the test error is of test images.")
