"""Budget: how long a recipe trains, and in batches of which size."""

from dataclasses import dataclass

from .value import Value, require, require_at_least


@dataclass(frozen=True)
class Budget(Value):
    """Epochs and the size of a batch."""

    epochs: int = 200
    """B: how often each training example is seen."""
    batch: int = 64
    """Examples in a step."""
    warmup_epochs: int = 0
    """Epochs of a rising rate before the first cycle, inside `epochs`."""

    def check(self) -> None:
        """There is at least one epoch after the warm-up, and one example in a batch."""
        require_at_least(1, epochs=self.epochs, batch=self.batch)
        require_at_least(0, warmup_epochs=self.warmup_epochs)
        rule = f"be less than epochs={self.epochs}"
        require(self.warmup_epochs < self.epochs, "warmup_epochs", rule, self.warmup_epochs)
