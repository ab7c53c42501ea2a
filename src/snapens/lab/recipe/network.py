"""Network: the network of a recipe."""

from dataclasses import dataclass

from .value import Value, require, require_at_least


@dataclass(frozen=True)
class Network(Value):
    """A network by name: one of `lab.nets.NETWORKS`, `torchvision:NAME`, `timm:NAME`, or your own `module:callable`."""

    name: str = "resnet110"
    dropout: float = 0.0
    """The dropout probability."""
    stem_stride: int = 1
    """The stride of the first layer; the paper uses 2 for Tiny ImageNet."""

    def check(self) -> None:
        """Dropout is a probability; the stride is at least 1."""
        require(0 <= self.dropout < 1, "dropout", "be at least 0 and less than 1", self.dropout)
        require_at_least(1, stem_stride=self.stem_stride)
