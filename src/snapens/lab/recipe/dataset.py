"""Dataset: which data a recipe trains on, and how many of the training examples are held out."""

from dataclasses import dataclass

from .value import Value, require, require_at_least


@dataclass(frozen=True)
class Dataset(Value):
    """A data set by name, one of `lab.data.DATASETS`."""

    name: str = "cifar100"
    held_out: int = 0
    """Training examples that are set aside; whatever is chosen later is chosen on them."""
    held_out_seed: int = 0
    """Decides which examples those are."""
    padding: int | None = None
    """Pixels of padding around an image, from which training crops it; None: as the data set has it."""

    def check(self) -> None:
        """Counts are at least 0."""
        require_at_least(0, held_out=self.held_out, held_out_seed=self.held_out_seed, padding=self.padding or 0)
        require(self.held_out_seed < 1 << 63, "held_out_seed", "be less than 2 to the 63", self.held_out_seed)
