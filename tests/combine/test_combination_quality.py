"""The quality of a combination."""

from dataclasses import replace

import pytest

from snapens import Combination
from snapens.combine.evaluation import Evaluation


def test_likelihoods_at_the_best_temperature_are_those_of_the_members_that_early_exit_evaluates(make_outputs):
    outputs = make_outputs(examples=400)
    everything, networks = Combination(outputs.members), [make_outputs(examples=400)]
    for threshold, equal in ((1e-6, Combination(outputs.members[-1:])), (1 - 1e-9, everything)):
        found = Evaluation.of(outputs, replace(everything, exit_threshold=threshold, temperature=2.0), networks)
        expected = Evaluation.of(outputs, equal, networks)
        assert found.mean_members == expected.mean_members
        # the mean of members is rounded to half precision
        assert found.calibrated_log_likelihood == pytest.approx(expected.calibrated_log_likelihood, abs=1e-3)
        assert found.equivalent == pytest.approx(expected.equivalent, abs=1e-2)
