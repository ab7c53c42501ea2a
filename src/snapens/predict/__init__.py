"""Fast prediction with an ensemble: the same result as `Ensemble.predict`, with less work and fewer kernel launches."""

from .predictor import BatchPrediction as BatchPrediction
from .predictor import Predictor as Predictor
