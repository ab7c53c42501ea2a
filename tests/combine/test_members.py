"""The choice of members, with NLLs that are known by hand: −log of the mean probability of the true class."""

import numpy as np
import pytest

from snapens.combine.members import last_members, without_early_members


def of(*probabilities):
    """The NLL of mixtures of members that give these probabilities to the true class of a single example."""
    return lambda weights: -np.log(weights @ np.array(probabilities))


def test_the_last_m_are_those_of_the_lowest_nll():
    rng = np.random.default_rng(0)
    for p in rng.random((20, 5)):
        means = [p[5 - m :].mean() for m in range(1, 6)]
        m = int(np.argmax(means)) + 1
        assert last_members(["a"] * 5, of(*p)) == pytest.approx([0] * (5 - m) + [1 / m] * m)


def test_the_last_m_are_counted_in_each_run():
    found = last_members(["a", "b", "a", "b", "b"], of(0.1, 0.2, 0.8, 0.9, 0.7))
    assert found.tolist() == [0, 0, 1 / 3, 1 / 3, 1 / 3] or found.tolist() == [0, 0, 0.5, 0, 0.5]


def test_early_members_are_dropped_while_that_helps():
    assert without_early_members(["a"] * 4, of(0.1, 0.2, 0.6, 0.6)) == pytest.approx([0, 0, 0.5, 0.5])
    # dropping the oldest does not help, so the second is not reached
    assert without_early_members(["a"] * 3, of(0.6, 0.1, 0.5)) == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_early_members_are_dropped_from_the_run_where_it_helps_and_the_last_ones_remain():
    runs = ["a", "b", "a", "b"]
    assert without_early_members(runs, of(0.5, 0.1, 0.6, 0.6)) == pytest.approx([0, 0, 0.5, 0.5])
    assert without_early_members(runs, of(0.7, 0.1, 0.6, 0.5)) == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    assert without_early_members(["a", "b"], of(0.1, 0.9)).tolist() == [0.5, 0.5]


def test_one_member_remains():
    assert last_members(["a"], of(0.3)).tolist() == without_early_members(["a"], of(0.3)).tolist() == [1]
