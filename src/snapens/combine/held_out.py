"""Held-out outputs: the only ones on which anything is chosen."""

from ..errors import ArgumentError
from ..outputs import Outputs

FEW_EXAMPLES = 100
"""Below this number of examples the noise is so large that nothing should be chosen on them."""


def check_held_out(outputs: Outputs) -> None:
    """Reject the test part: after a choice on the test set, test results are too good."""
    if not isinstance(outputs, Outputs):
        raise ArgumentError(f"outputs must be Outputs, got {outputs!r}: use ensemble.outputs(loader) or Outputs.load")
    if outputs.part == "test":
        raise ArgumentError(
            "outputs must be those of held-out training data, got the part 'test': results on data that a choice was "
            "made on are too good; hold out a part of the training data and pass its outputs"
        )
