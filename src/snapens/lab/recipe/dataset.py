"""Dataset: the data set of a recipe, and the number of training examples that are held out."""

from dataclasses import dataclass

from .value import Value, require, require_at_least


@dataclass(frozen=True)
class Dataset(Value):
    """A data set by name, one of `lab.data.DATASETS`."""

    name: str = "cifar100"
    held_out: int = 0
    """The number of training examples that are held out, for example to choose m."""
    held_out_seed: int = 0
    """The seed that selects the held-out examples."""
    padding: int | None = None
    """Pixels of padding around an image before random cropping; None: the default of the data set."""

    def check(self) -> None:
        """Counts are at least 0."""
        require_at_least(0, held_out=self.held_out, held_out_seed=self.held_out_seed, padding=self.padding or 0)
        require(self.held_out_seed < 1 << 63, "held_out_seed", "be less than 2 to the 63", self.held_out_seed)
