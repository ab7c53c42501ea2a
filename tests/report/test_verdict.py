"""Each rule of the verdict, on both sides of its threshold."""

from dataclasses import replace

import pytest

from snapens.lab.records.curves import Line
from snapens.quality import Difference
from snapens.report.basis import basis
from snapens.report.evidence import Evidence
from snapens.report.verdict import FLAT_POINTS, FLAT_SHARE, SAME_ANSWERS, STILL_IMPROVING, verdict


def by(more, fewer=0):
    """A difference on 10,000 images."""
    return Difference(more, fewer, 10_000)


NOTHING = by(100, 100)
EVIDENCE = Evidence(
    part="test",
    examples=10_000,
    noun="images",
    missing=0,
    own_loop=False,
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
    tested=True,
    test_noise=0.0045,
    calibrated=False,
)


def findings(**changes):
    return {finding.text: finding for finding in verdict(replace(EVIDENCE, **changes))}


def line(snapshot, bump=0.0, dip=0.0):
    """From 30 to 24 %, with so much more than 27 half-way; or so much less than the lower end."""
    half = 24 - dip if dip else 27 + bump
    return Line(snapshot, (30, 90, 24), (30, half, 24))


def lines(*of):
    return {found.snapshot: found for found in of}


def test_a_healthy_run_gains_and_takes_all_its_members():
    assert list(findings()) == [
        "The ensemble is better than its last snapshot, beyond noise.",
        "All 3 snapshots are needed.",
    ]


def test_a_run_at_chance_has_no_other_finding():
    (finding,) = findings(learned=by(59, 41), ensemble_errors=(0.9, 0.9, 0.897)).values()  # chance 0.044
    assert (finding.kind, finding.text) == (
        "warning",
        "The ensemble is not measurably better than guessing.",
    )
    assert finding.reason.startswith(
        "On the 10,000 test images, always predicting the most frequent class has an error of 89.88 %, "
        "and the ensemble has 89.70 %."
    )
    assert len(findings(learned=by(61, 39))) == 2
    text = "The run is not finished: 3 of 4 snapshots exist."
    assert list(findings(learned=by(59, 41), missing=1)) == [finding.text, text]


def test_too_few_images_to_tell_an_ensemble_from_a_guess_are_not_blamed_on_the_labels():
    # 4 of 5 images: scipy's binomtest has 0.19; guessing is wrong on 5 of 10, the ensemble on 2
    few = {"learned": Difference(4, 1, 10), "examples": 10}
    (finding,) = findings(**few, ensemble_errors=(0.3, 0.3, 0.2)).values()
    assert finding.kind == "note"
    assert finding.text == "There are too few images to tell whether the ensemble is better than guessing."
    assert finding.reason == (
        "On the 10 test images, always predicting the most frequent class has an error of 50.00 %, and the ensemble "
        "has 20.00 %. This difference may be chance. Test on more images."
    )
    (finding,) = findings(**few, ensemble_errors=(0.2,), member_errors=(0.2,), noun="examples").values()
    assert finding.text == "There are too few examples to tell whether the only snapshot is better than guessing."
    slightly = {"learned": Difference(4, 2, 20), "examples": 20}  # 45 % instead of 55 %, a reduction by 18 %
    (finding,) = findings(**slightly, ensemble_errors=(0.45,), member_errors=(0.45,)).values()
    assert finding.text == "The only snapshot is not measurably better than guessing."


@pytest.mark.parametrize(
    ("gain", "kind", "words"),
    [
        # scipy's binomtest has 0.018 for 61 of 100 or more, and 0.044 for 59
        (by(61, 39), "good", "is better than its last snapshot, beyond noise"),
        (by(59, 41), "note", "is not measurably better than its last snapshot"),
        (
            by(4, 0),
            "note",
            "is not measurably better than its last snapshot",
        ),  # a sixteenth, though twice its standard error
        (by(50, 50), "note", "is as accurate as its last snapshot."),
        (by(0, 0), "note", "is as accurate as its last snapshot."),
        (by(41, 59), "note", "is not better than its last snapshot."),
        (by(39, 61), "warning", "is worse than its last snapshot, beyond noise"),
    ],
)
def test_a_gain_counts_beyond_noise(gain, kind, words):
    first = next(iter(findings(gain=gain).values()))
    assert first.kind == kind
    assert words in first.text


@pytest.mark.parametrize(
    ("under", "kind", "words", "reason"),
    [
        (
            by(61, 39),
            "good",
            "is better than a single model trained equally long",
            "0.22 points lower than that of the single",
        ),
        (by(59, 41), "note", "is not measurably better than a single model trained equally", "0.18 points lower"),
        (by(41, 59), "note", "is not better than a single model trained equally", "0.18 points higher"),
        (by(39, 61), "warning", "is worse than a single model trained equally", "paired standard error of 0.10 points"),
    ],
)
def test_the_standard_schedule_is_beaten_beyond_noise(under, kind, words, reason):
    found = verdict(EVIDENCE, under)[1]
    assert found.kind == kind
    assert words in found.text
    assert reason in found.reason
    assert "standard schedule" not in "".join(finding.text for finding in verdict(replace(EVIDENCE, missing=1), under))
    two = replace(EVIDENCE, member_errors=(0.3, 0.3), ensemble_errors=(0.3, 0.27), over_fewer=(NOTHING, by(0)))
    assert words in verdict(replace(two, over_best=(NOTHING, by(0)), disagreements=(0.2,)), under)[1].text


@pytest.mark.parametrize(("together", "worse"), [(1.021, True), (1.0199, False), (0.9, False)])
def test_probabilities_are_worse_beyond_two_standard_errors(together, worse):
    found, text = (
        findings(nll=(1.0, together)),
        "The ensemble's probabilities are worse than those of its last snapshot.",
    )
    assert (text in found) is worse
    if worse:
        reason = found[text].reason
        assert reason.startswith(
            "The NLL is 1.0210 instead of 1.0000, with a paired standard error of 0.0100. Calibrate the ensemble on"
        )
        reason = findings(nll=(1.0, together), calibrated=True)[text].reason
        assert reason.endswith("0.0100. The result of the fitted combination, below, shows whether it corrects this.")


@pytest.mark.parametrize(
    ("together", "gain", "better"),
    [(0.979, by(59, 41), True), (0.9801, by(59, 41), False), (0.9, by(50, 50), True), (0.9, by(61, 39), False)],
)
def test_better_probabilities_are_a_finding_where_the_error_is_not_clearly_better(together, gain, better):
    found, text = (
        findings(nll=(1.0, together), gain=gain),
        "The ensemble's probabilities are better than those of its last snapshot.",
    )
    assert (text in found) is better
    if better:
        assert found[text].kind == "good"
        assert found[text].reason == (
            f"The NLL is {together:.4f} instead of 1.0000, with a paired standard error of 0.0100."
        )


def test_reasons_name_the_numbers():
    reason = next(iter(findings().values())).reason
    assert reason == (
        "On the 10,000 test images, the error of the last snapshot is 30.00 % and the error of all 3 together is "
        "27.00 %: 3.00 points lower, with a paired standard error of 0.22 points."
    )
    held_out = next(iter(findings(part="held_out", examples=200).values())).reason
    assert held_out.startswith("On the 200 held-out images, the error of the last snapshot is 30.00 % and")
    worse = next(iter(findings(gain=by(100, 400), ensemble_errors=(0.30, 0.28, 0.33)).values())).reason
    assert "33.00 %: 3.00 points higher" in worse


@pytest.mark.parametrize(
    ("over_best", "words"),
    [
        # the standard error of 55 against 45 is 0.1 points, less a hair
        ((by(400, 100), by(54, 45), by(0)), "m = 2 of 3 is enough."),
        ((by(400, 100), by(55, 45), by(0)), "All 3 snapshots are needed."),
        ((by(51, 49), by(0), by(60, 40)), "m = 1 of 3 is enough."),
    ],
)
def test_enough_is_the_smallest_m_within_one_standard_error_of_the_best(over_best, words):
    errors = tuple(0.27 + difference.value for difference in over_best)
    found = findings(over_best=over_best, ensemble_errors=errors)
    assert words in found
    if words == "m = 1 of 3 is enough.":
        assert found[words].reason == (
            "The error is 27.02 % with the last snapshot alone and 27.00 % with the best m = 2; the difference is "
            "within one paired standard error (0.10 points)."
        )


def test_the_last_alone_is_enough_where_it_is_the_best():
    found = findings(over_best=(by(0), by(200, 100), by(300, 100)), ensemble_errors=(0.3, 0.31, 0.32))
    reason = "The error is 30.00 % with the last snapshot alone, and more snapshots do not lower it."
    assert found["m = 1 of 3 is enough."].reason == reason


# two looks share the chance: scipy has 0.0105 for 62 of 100 or more, 0.0176 for 61
@pytest.mark.parametrize(("more", "hurts"), [(62, True), (61, False)])
def test_early_snapshots_hurt_where_fewer_are_better_beyond_noise(more, hurts):
    worse = by(more, 100 - more)
    found = findings(over_fewer=(by(100, 400), worse, by(0)), ensemble_errors=(0.30, 0.266, 0.27))
    assert ("The first snapshot makes the ensemble worse." in found) is hurts
    found = findings(over_fewer=(worse, by(0), by(0)), ensemble_errors=(0.266, 0.27, 0.27))
    assert ("The first 2 snapshots make the ensemble worse." in found) is hurts
    if hurts:
        assert "26.60 % with the last snapshot alone and 27.00 % with all 3: 0.24 points higher" in "".join(
            finding.reason for finding in found.values()
        )


def test_of_several_m_that_beat_all_together_the_best_is_named():
    better = by(300, 100)
    found = findings(over_fewer=(better, better, by(0)), ensemble_errors=(0.26, 0.25, 0.27))
    assert found["The first snapshot makes the ensemble worse."].reason.startswith(
        "The error is 25.00 % with the last 2 and"
    )


@pytest.mark.parametrize(
    ("part", "words"),
    [("test", "Before you leave them out, use held-out images"), ("held_out", "Leave the early snapshots out")],
)
def test_snapshots_are_left_out_only_by_images_that_were_held_out(part, words):
    found = findings(over_fewer=(by(0), by(300, 100), by(0)), part=part)
    assert words in found["The first snapshot makes the ensemble worse."].reason


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
    found = findings(progress={1: progress}, restarts=("fresh", restarts))
    assert (SHORT in found) is short
    if short:
        assert "from 30.00 % to 30.00 %, a relative reduction of 5 % (" in found[SHORT].reason
        assert "training loss at the minimum from 0.2 to 0.1" in found[SHORT].reason
        assert "training loss" not in findings(progress={1: progress}, losses=())[SHORT].reason


@pytest.mark.parametrize(
    ("progress", "restarts", "short"),
    [
        (by(2 * ENOUGH + 100, 100), ("warm", "warm"), True),
        (by(2 * ENOUGH + 98, 100), ("warm", "warm"), False),
        (by(2 * ENOUGH + 100, 100), ("fresh", "warm"), False),
    ],
)
def test_cycles_are_too_short_where_the_later_half_took_off_much_on_average(progress, restarts, short):
    found = findings(progress={1: NOTHING, 2: progress}, restarts=restarts)
    assert (SHORT in found) is short
    if short:
        assert found[SHORT].reason.startswith("The last 2 cycles reduced the error of a snapshot from 30.00 % to 30.00")
        assert "a relative reduction of 5 % per cycle" in found[SHORT].reason
        assert "training loss at the minimum from 0.3 to 0.1" in found[SHORT].reason


def test_snapshots_that_answer_alike_are_told():
    # of 30 % errors a quarter is 7.5 %; the noise of counting 7 % of 10,000 is 0.51 points
    found = findings(disagreements=(SAME_ANSWERS * 0.3 - 0.0050, SAME_ANSWERS * 0.3 - 0.0052))
    assert found["Snapshot 2 is nearly identical to the last one."].kind == "warning"
    reason = found["Snapshot 2 is nearly identical to the last one."].reason
    assert "no bump" not in reason
    assert reason.startswith(
        "At most 6.98 % of the predictions differ from those of the last snapshot, whose error is 30.00 %."
    )
    flat = findings(disagreements=(0.02, 0.03), lines=lines(line(1, bump=50), line(2)))
    assert "At most 3.00 % of the predictions" in flat["Snapshots 1 and 2 are nearly identical to the last one."].reason
    reason = flat["Snapshots 1 and 2 are nearly identical to the last one."].reason
    assert "The error has no bump on the line from snapshot 2 to the last one." in reason


def test_members_that_are_always_right_are_not_alike():
    assert not any(
        "nearly identical" in words for words in findings(disagreements=(0.0, 0.0), member_errors=(0.1, 0, 0))
    )


@pytest.mark.parametrize(
    ("restarts", "advice"),
    [
        ("none", "cycles make snapshots differ"),
        ("warm", "Restarts at a higher"),
        ("fresh", "share no weights"),
    ],
)
def test_what_to_do_about_snapshots_that_are_alike_depends_on_how_they_were_trained(restarts, advice):
    found = findings(disagreements=(0.2, 0.01), restarts=("fresh", restarts))
    assert advice in found["Snapshot 2 is nearly identical to the last one."].reason


def test_a_line_without_a_bump_is_distinguished_from_equal_predictions():
    both = lines(line(1, bump=FLAT_POINTS - 0.01), line(2, bump=FLAT_POINTS + 0.01))
    assert "Snapshot 1 is in the same valley as the last one." in findings(lines=both)
    assert not any("valley" in words for words in findings(lines=lines(line(1, bump=10), line(2, bump=10))))
    assert not any("valley" in words for words in findings(lines=lines(line(2)), disagreements=(0.5, 0.01)))
    for gain, useful in ((by(400, 100), True), (NOTHING, False)):
        found = findings(lines=both, gain=gain)["Snapshot 1 is in the same valley as the last one."]
        assert ("The predictions differ nevertheless, and the ensemble gains from that" in found.reason) is useful


def test_what_is_a_bump_depends_on_the_error():
    small = {"member_errors": (0.05, 0.05, 0.05), "test_noise": 0.002}
    for bump, flat in ((100 * FLAT_SHARE * 0.05 - 0.01, True), (100 * FLAT_SHARE * 0.05 + 0.01, False)):
        found = findings(lines=lines(line(1, bump=bump)), **small)
        assert ("Snapshot 1 is in the same valley as the last one." in found) is flat
        if flat:
            assert "never more than 0.50 points" in found["Snapshot 1 is in the same valley as the last one."].reason


def test_an_average_of_weights_is_suggested_where_the_line_dips_below_both_ends():
    text = "Snapshots 1 and 2 are in the same valley as the last one."
    assert "average of the weights" in findings(lines=lines(line(1, dip=1), line(2, dip=0.5)))[text].reason
    assert "average of the weights" not in findings(lines=lines(line(1, dip=1), line(2)))[text].reason


def test_too_few_images_to_see_a_bump_give_no_finding_about_valleys():
    # 0.6 points of noise: a line may rise by more than a point unseen
    assert not any("valley" in words for words in findings(lines=lines(line(1), line(2)), test_noise=0.006))
    alike = findings(disagreements=(0.01, 0.01), lines=lines(line(1)), test_noise=0.006)
    assert not any("no bump" in finding.reason for finding in alike.values())


def test_m_is_not_chosen_on_few_images():
    assert "All 3 snapshots are needed." in findings(examples=100)
    assert not any("needed" in text or "enough" in text for text in findings(examples=99))


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
    assert [finding.text for finding in verdict(alone)] == [
        "There is only one snapshot, so there is nothing to average."
    ]
    (finding,) = verdict(replace(alone, missing=3))
    assert finding.text == "The run is not finished: 1 of 4 snapshots exists."
    assert finding.reason.endswith("To continue the run, repeat its command with --resume.")


def test_an_unfinished_run_has_few_findings():
    found = findings(missing=22, over_fewer=(by(0), by(300, 100), by(0)), progress={1: by(ENOUGH + 100, 100)})
    assert list(found)[1:] == ["The run is not finished: 3 of 25 snapshots exist."]


def test_the_basis_says_what_the_findings_may_be_used_for():
    assert basis(EVIDENCE) == (
        "The findings describe the 10,000 test images, because no images were held out. Do not use them to choose m or "
        "the number of cycles: train with --held-out N and write the report again."
    )
    own_loop = basis(replace(EVIDENCE, own_loop=True))
    assert own_loop.endswith('number of cycles: save outputs with part="held_out" and write the report again.')
    untested = basis(replace(EVIDENCE, part="held_out", tested=False))
    assert untested == (
        "The findings, like all numbers on this page, are based on 10,000 held-out images. You may use them to choose "
        "m or the number of cycles."
    )
    held_out = basis(replace(EVIDENCE, part="held_out"))
    assert held_out.startswith("The findings are based on 10,000 held-out images. You may use them to choose m or the")
    assert held_out.endswith("Statements about the test error are based on the test images.")
    few = basis(replace(EVIDENCE, part="held_out", examples=99, noun="examples"))
    assert few == (
        "The findings are based on 99 held-out examples. These are too few to choose m or the number of cycles: hold "
        "out at least 100. Statements about the test error are based on the test examples."
    )
