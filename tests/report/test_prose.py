"""Numbers of a ledger in the sentences of a page."""

from dataclasses import asdict, replace

import measurements
import pytest
from pages.prose import Change, check, rendered

from snapens.errors import ArgumentError
from snapens.lab.paper import cells as paper
from snapens.lab.paper.entry import Exit
from snapens.storage import jsonfile

ONE, TWO = "wrn32-cifar10-single-seed0", "wrn32-cifar10-snapshot-0.2-seed0"


@pytest.fixture
def results(tmp_path):
    """A ledger of three runs whose numbers are easy to recognise."""
    errors = {"single": (9.5, 9.4, 9.3, 9.2, 9.0), "snapshot-0.2": (8.0, 7.0, 6.5, 6.1, 6.25), "dropout": (9.0,) * 5}
    for method, percent in errors.items():
        entry = measurements.entry(paper.find(f"wrn32-cifar10-{method}").recipe)
        entry = replace(
            entry,
            snapshot_percent=percent[::-1],
            last_percent=percent,
            first_percent=(percent[-1],) * 5,
            last_nll=(0.5, 0.4, 0.3, 0.25, 0.2),
            last_ece=(0.08, 0.06, 0.04, 0.03, 0.02),
            early_exit=(Exit(0.9, 6.75, 1.5), Exit(0.99, 6.25, 3.0)),
        )
        content = {"format": 2, "kind": "run", **asdict(entry), "recipe": entry.recipe.written()}
        (tmp_path / f"{entry.name}.json").write_bytes(jsonfile.dumps(content))
    differences = {
        f"{ONE} last minus {TWO} ensemble": {"points": 3.25, "standard_error": 0.5},
        f"{TWO} last minus {TWO} ensemble": {"points": 1.75, "standard_error": 0.875, "source": "entered by hand"},
    }
    (tmp_path / "differences.json").write_bytes(jsonfile.lines({"format": 1, **differences}))
    return tmp_path


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("run.single.error", "9.50"),
        ("run.nocycle.error", "9.00"),
        ("snapshot.error", "6.25"),
        ("snapshot.last.error", "8.00"),
        ("snapshot - run.single", "−3.25 ± 0.50"),
        ("run.single - snapshot", "+3.25 ± 0.50"),
        ("(snapshot - run.single).size", "3.25 ± 0.50"),
        ("(snapshot - run.single).published", "−0.70"),  # 4.73 - 5.43 in Table 1
        ("(snapshot - run.single).lower", "True"),
        ("(snapshot - run.single).unclear", "False"),
        ("(run.single - snapshot).higher", "True"),
        ("(snapshot - snapshot.last).unclear", "True"),  # exactly two standard errors
        ("(snapshot - snapshot.last).published", "–"),
        ("snapshot - run.dropout", "−2.75"),
        ("decimal(snapshot.over_paper, 2)", "1.52"),
        ("decimal(snapshot.over_best, 2)", "0.15"),
        ("snapshot.sizes", "8.00, 7.00, 6.50, 6.10, 6.25"),
        ("snapshot.nll, snapshot.last.nll", "('0.200', '0.500')"),
        ("snapshot.ece, run.single.ece, run.single.ensemble.ece", "('2.0', '8.0', '2.0')"),
        ("decimal(snapshot.early.mean_members, 1)", "1.5"),
        ("decimal(snapshot.early_loss, 2)", "0.50"),
        ("snapshot.budget", "200 epochs, 5 snapshots"),
        ("snapshot.test_images", "10,000"),
        ("span(snapshot.neighbours, 1)", "10.0"),
        ("span(snapshot.rises, 1)", "1.6 to 6.4"),  # 8 points times 1/5 to 4/5
        ("decimal(snapshot.peaks | max, 0)", "73"),  # 4.73 + (90 - 4.73) * 4/5
        ("all_measured('cifar10') | list", "['Wide-ResNet-32, CIFAR-10']"),
        ("all_measured('cifar10')['Wide-ResNet-32, CIFAR-10'] == run", "True"),
        ("all_measured('cifar100')", "{}"),
        ("ensembles('cifar100', 'cifar10') == [snapshot]", "True"),
        ("ensembles('cifar100')", "[]"),
        ("ensembles_minus('single', 'cifar10') | join(', ')", "−3.25 ± 0.50"),
        ("ensembles_minus('dropout', 'cifar10', last=true) | join(', ')", "−1.00"),  # 8 - 9
        ("ensembles_minus('singlecycle', 'cifar10')", "[]"),
        ("snapshot.last.minus_last", "−1.75 ± 0.88"),  # 6.25 - 8
        ("run | list | sort | join(' ')", "dropout nocycle single snapshot-0.2"),
        ("word", "given"),
    ],
)
def test_an_expression_names_a_number_of_the_ledger(results, expression, text):
    names = '{% set run = measured("wrn32", "cifar10") %}{% set snapshot = run["snapshot-0.2"] %}'
    assert rendered(f"{names}{{{{ {expression} }}}}\n", results, word="given") == f"{text}\n"


def test_what_is_not_measured_is_an_error_not_an_empty_text(results):
    with pytest.raises(Exception, match="'dict object' has no attribute 'singlecycle'"):
        rendered('{{ measured("wrn32", "cifar10").singlecycle.error }}', results)


def test_a_statement_about_a_difference_needs_its_standard_error():
    change = Change(-2.75, None, "–")
    for state in ("lower", "higher", "unclear"):
        with pytest.raises(ArgumentError, match=r"difference −2\.75 must have a standard error, got none: record its"):
            getattr(change, state)


def test_a_snapshot_alone_has_no_published_error(results):
    with pytest.raises(ArgumentError, match=f"{TWO} must have a published error, got none: name a cell"):
        rendered('{{ measured("wrn32", "cifar10")["snapshot-0.2"].last.over_paper }}', results)


def test_a_sentence_whose_condition_does_not_hold_is_an_error():
    assert check(True, True) == ""
    with pytest.raises(ArgumentError, match=r"conditions must hold .*, got \(True, False\): rewrite this sentence"):
        check(True, False)
