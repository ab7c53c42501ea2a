"""How a combination is fitted on held-out outputs: members, weights, temperature and exit threshold.

`combine.soup` averages the weights of snapshots instead of their predictions; it needs torch and is imported by name.
"""

from .calibration import calibrated_log_likelihood as calibrated_log_likelihood
from .calibration import deep_ensemble_equivalent as deep_ensemble_equivalent
from .calibration import fit_temperature as fit_temperature
from .conformal import ConformalSets as ConformalSets
from .exits import exit_threshold as exit_threshold
from .fitting import Gain as Gain
from .fitting import MeanDifference as MeanDifference
from .fitting import fit as fit
from .fitting import gains as gains
from .weights import greedy_weights as greedy_weights
from .weights import mixture_nll as mixture_nll
from .weights import simplex_weights as simplex_weights
from .weights import true_class_probabilities as true_class_probabilities
