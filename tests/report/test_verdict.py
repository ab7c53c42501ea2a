"""Each rule of the verdict, on both sides of its threshold."""

from dataclasses import replace

import pytest

from snapens.report.evidence import Difference, Evidence
from snapens.report.verdict import FLAT, NOISE, SAME_ANSWERS, STILL_IMPROVING, basis, verdict

NOTHING = Difference(0.0, 0.001)
EVIDENCE = Evidence(
    part="test",
    examples=10_000,
    restarts="warm",
    member_errors=(0.30, 0.30, 0.30),
    ensemble_errors=(0.30, 0.28, 0.27),
    gain=Difference(0.03, 0.002),
    progress=NOTHING,
    losses=(0.3, 0.2, 0.1),
    over_fewer=(Difference(-0.03, 0.002), Difference(-0.01, 0.002), Difference(0.0, 0.0)),
    over_best=(Difference(0.03, 0.002), Difference(0.01, 0.002), Difference(0.0, 0.0)),
    disagreements=(0.25, 0.20),
    bumps={},
    test_noise=0.005,
)


def said(**changes):
    return {finding.says: finding for finding in verdict(replace(EVIDENCE, **changes))}


def test_a_healthy_run_gains_and_takes_all_its_members():
    assert list(said()) == ["The ensemble is better than its last snapshot, beyond noise.", "It takes all 3."]


@pytest.mark.parametrize(
    ("standard_errors", "kind", "words"),
    [
        (NOISE + 0.1, "good", "is better than its last snapshot, beyond noise"),
        (NOISE - 0.1, "note", "is no better than its last snapshot, as far as these images tell"),
        (-NOISE + 0.1, "note", "is no better than its last snapshot"),
        (-NOISE - 0.1, "warning", "is worse than its last snapshot"),
    ],
)
def test_a_gain_counts_beyond_noise(standard_errors, kind, words):
    first = next(iter(said(gain=Difference(standard_errors * 0.01, 0.01)).values()))
    assert first.kind == kind
    assert words in first.says


def test_reasons_name_the_numbers():
    because = next(iter(said().values())).because
    assert because == (
        "The last snapshot against all 3: 30.00 % against 27.00 %, a difference of +3.00 points with a paired "
        "standard error of 0.20 points."
    )


@pytest.mark.parametrize(
    ("differences", "words"),
    [
        ((0.03, 0.0019, 0.0), "m = 2 of 3 is enough."),  # within one standard error of the best
        ((0.03, 0.0021, 0.0), "It takes all 3."),
        ((0.0005, 0.0, 0.001), "m = 1 of 3 is enough."),
    ],
)
def test_enough_is_the_smallest_m_within_one_standard_error_of_the_best(differences, words):
    errors = tuple(0.27 + value for value in differences)
    over_best = tuple(Difference(value, 0.002 if value else 0.0) for value in differences)
    assert words in said(over_best=over_best, ensemble_errors=errors)


# two looks: 1.14 % of a normal distribution lie beyond 2.28 standard deviations, half of the 2.28 % beyond 2
@pytest.mark.parametrize(("value", "hurts"), [(0.00456, True), (0.00455, False)])
def test_early_snapshots_hurt_where_fewer_are_better_beyond_noise(value, hurts):
    fewer = (Difference(-0.03, 0.002), Difference(value, 0.002), Difference(0.0, 0.0))
    found = said(over_fewer=fewer, ensemble_errors=(0.30, 0.266, 0.27))
    assert ("The first snapshot hurts the ensemble." in found) is hurts
    several = (Difference(value, 0.002), Difference(0.0, 0.002), Difference(0.0, 0.0))
    found = said(over_fewer=several, ensemble_errors=(0.266, 0.27, 0.27))
    assert ("The first 2 snapshots hurt the ensemble." in found) is hurts


SHORT = "The cycles are too short: snapshots were still improving."


@pytest.mark.parametrize(
    ("progress", "restarts", "short"),
    [
        (Difference(STILL_IMPROVING * 0.3 + 1e-6, 0.001), "warm", True),
        (Difference(STILL_IMPROVING * 0.3 - 1e-6, 0.001), "warm", False),  # too small a share
        (Difference(0.06, 0.031), "warm", False),  # noise
        (Difference(0.06, 0.001), "none", False),
        (Difference(0.06, 0.001), "fresh", False),
        (None, "warm", False),
    ],
)
def test_cycles_are_too_short_where_the_last_one_still_took_off_much(progress, restarts, short):
    found = said(progress=progress, restarts=restarts)
    assert (SHORT in found) is short
    if short:
        assert "training loss at the minimum from 0.2 to 0.1" in found[SHORT].because
        assert "training loss" not in said(progress=progress, losses=())[SHORT].because


def test_snapshots_that_answer_alike_are_told():
    found = said(disagreements=(SAME_ANSWERS * 0.3 + 1e-6, SAME_ANSWERS * 0.3))  # of 30 % errors
    assert found["Snapshot 2 is nearly the last one again."].kind == "warning"
    assert "one minimum" not in found["Snapshot 2 is nearly the last one again."].because
    assert "differ on 7.50 % of the images or fewer, where the last one errs on 30.00 %" in "".join(
        finding.because for finding in found.values()
    )
    flat = said(disagreements=(0.03, 0.02), bumps={1: 0.5, 2: 0.001})
    because = flat["Snapshots 1 and 2 are nearly the last one again."].because
    assert "on the line from 2 to the last one the error has no bump: one minimum" in because


@pytest.mark.parametrize(
    ("restarts", "advice"),
    [
        ("none", "cycles are what makes snapshots differ"),
        ("warm", "Restarts at a higher"),
        ("fresh", "share no weights"),
    ],
)
def test_what_to_do_about_snapshots_that_are_alike_depends_on_how_they_were_trained(restarts, advice):
    assert (
        advice in said(disagreements=(0.01, 0.2), restarts=restarts)["Snapshot 1 is nearly the last one again."].because
    )


@pytest.mark.parametrize(
    ("part", "words"), [("test", "look at images that were held out"), ("held_out", "Leave them out")]
)
def test_snapshots_are_left_out_only_by_images_that_were_held_out(part, words):
    fewer = (Difference(0.0, 0.002), Difference(0.02, 0.002), Difference(0.0, 0.0))
    assert words in said(over_fewer=fewer, part=part)["The first snapshot hurts the ensemble."].because


def test_the_last_alone_is_enough_where_it_is_the_best():
    found = said(
        over_best=(Difference(0.0, 0.0), Difference(0.01, 0.002), Difference(0.02, 0.002)),
        ensemble_errors=(0.3, 0.31, 0.32),
    )
    assert found["m = 1 of 3 is enough."].because == "30.00 % with the last 1 is the best."


def test_a_line_without_a_bump_is_told_apart_from_like_answers():
    assert "Snapshot 1 is in one valley with the last one." in said(bumps={1: FLAT - 1e-6, 2: FLAT + 1e-6})
    assert not any("valley" in words for words in said(bumps={1: 0.1, 2: 0.1}))
    assert not any("valley" in words for words in said(bumps={2: -0.1}, disagreements=(0.5, 0.01)))


def test_one_snapshot_is_no_ensemble():
    found = verdict(
        replace(
            EVIDENCE,
            member_errors=(0.3,),
            ensemble_errors=(0.3,),
            progress=None,
            over_fewer=(NOTHING,),
            over_best=(NOTHING,),
            disagreements=(),
        )
    )
    assert [finding.says for finding in found] == ["There is one snapshot: nothing to average."]


def test_the_basis_says_what_the_findings_may_be_used_for():
    assert basis(EVIDENCE).startswith("A description of the 10,000 test images, not a choice")
    assert basis(replace(EVIDENCE, part="held_out")).startswith("From 10,000 training images that were held out")


def test_too_few_images_to_see_a_bump_say_nothing_of_valleys():
    # 0.6 points of noise: a line may rise by more than a point unseen
    assert not any("valley" in words for words in said(bumps={1: -0.1, 2: 0.0}, test_noise=0.006))
    alike = said(disagreements=(0.01, 0.01), bumps={1: 0.0}, test_noise=0.006)
    assert not any("one minimum" in finding.because for finding in alike.values())


def test_the_lines_are_said_to_be_of_test_images_where_the_rest_was_held_out():
    assert "of test images" in basis(replace(EVIDENCE, part="held_out", bumps={1: 0.0}))
    assert "of test images" not in basis(replace(EVIDENCE, part="held_out"))
