"""Budget: the number of epochs and the batch size of a recipe."""

from dataclasses import dataclass

from .value import Value, require, require_at_least


@dataclass(frozen=True)
class Budget(Value):
    """Epochs and the batch size."""

    epochs: int = 200
    """B: the number of passes over the training examples."""
    batch: int = 64
    """Examples per step."""
    warmup_epochs: int = 0
    """Warm-up epochs before the first cycle, included in `epochs`."""

    def check(self) -> None:
        """There is at least one epoch after the warm-up, and one example in a batch."""
        require_at_least(1, epochs=self.epochs, batch=self.batch)
        require_at_least(0, warmup_epochs=self.warmup_epochs)
        rule = f"be less than epochs={self.epochs}"
        require(self.warmup_epochs < self.epochs, "warmup_epochs", rule, self.warmup_epochs)
