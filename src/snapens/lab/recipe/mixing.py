"""Mixing: transforms that mix each example with its neighbour in the batch; targets become probabilities."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from .batch import Batch, Transform, between
from .value import require

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_QUANTILES = 1 << 12
_LARGEST_ALPHA = 100.0


@dataclass(frozen=True)
class Mixing(Transform):
    """Mix a share of each example with its neighbour: examples 0 and 1, 2 and 3, and so on.

    The order of the examples is random, and so are the pairs. Each example has its own share, which follows the
    distribution Beta(`alpha`, `alpha`). The last example of an odd batch is its own neighbour.
    """

    mixes = True
    alpha: float = 1.0
    probability: float = 1.0
    """The probability that an example is mixed."""

    def check(self) -> None:
        """Alpha is positive, and the probability more than 0."""
        rule = f"be more than 0 and at most {_LARGEST_ALPHA:g}"
        require(0 < self.alpha <= _LARGEST_ALPHA, "alpha", rule, self.alpha)
        require(0 < self.probability <= 1, "probability", "be more than 0 and at most 1", self.probability)

    def __call__(self, batch: Batch, draws: "Tensor") -> Batch:
        """The first numbers are the share of the example, and whether it is mixed."""
        import torch

        batch, count, device = batch.restored(), len(batch.inputs), draws.device
        share = _quantiles(self.alpha, device)[(draws[:, 0] * _QUANTILES).long()]
        share = torch.where(draws[:, 1] < self.probability, share, 1.0)
        partner = (torch.arange(count, device=device) ^ 1).clamp(max=count - 1)
        mixed, share = self.mixed(batch, partner, share, draws[:, 2:])
        targets = batch.targets
        if targets.dim() == 1:
            assert batch.classes is not None
            targets = (targets[:, None] == torch.arange(batch.classes, device=device)).float()
        return mixed._replace(targets=share[:, None] * targets + (1 - share[:, None]) * targets[partner])

    @abstractmethod
    def mixed(self, batch: Batch, partner: "Tensor", share: "Tensor", draws: "Tensor") -> "tuple[Batch, Tensor]":
        """The batch with mixed inputs, and the exact share of each example (batch,)."""


@dataclass(frozen=True)
class Mixup(Mixing):
    """Average each example with its neighbour (Zhang et al., 2018)."""

    columns = 2
    alpha: float = 0.2

    def suits(self, inputs: Mapping[str, int]) -> bool:
        """Any examples: rows of a table, too."""
        return True

    def mixed(self, batch: Batch, partner: "Tensor", share: "Tensor", draws: "Tensor") -> "tuple[Batch, Tensor]":
        """A weighted mean of the values."""
        weight = share.view(-1, *[1] * (batch.inputs.dim() - 1))
        inputs = weight * batch.inputs + (1 - weight) * batch.inputs[partner]
        inside = None if batch.inside is None else batch.inside | batch.inside[partner]
        return batch._replace(inputs=inputs, inside=inside), share


@dataclass(frozen=True)
class CutMix(Mixing):
    """Replace a box of each image by that of its neighbour (Yun et al., 2019)."""

    columns = 4

    def mixed(self, batch: Batch, partner: "Tensor", share: "Tensor", draws: "Tensor") -> "tuple[Batch, Tensor]":
        """The further numbers are the centre of the box; the box is clipped at the border of the image."""
        import torch

        rows, columns = (
            between(side, (draw[:, None] * side).floor() - half, 2 * half)
            for side, draw in zip(batch.inputs.shape[1:3], draws.unbind(1), strict=True)
            for half in [(side * (1 - share[:, None]).sqrt()).floor() // 2]
        )
        box = (rows[:, :, None] & columns[:, None, :])[..., None]
        inputs = torch.where(box, batch.inputs[partner], batch.inputs)
        inside = None if batch.inside is None else torch.where(box, batch.inside[partner], batch.inside)
        return batch._replace(inputs=inputs, inside=inside), 1 - box.float().mean((1, 2, 3))


@cache
def _quantiles(alpha: float, device: "torch.device") -> "Tensor":
    """The quantiles of Beta(alpha, alpha) in the middle of equal intervals of probability.

    The density is x^(alpha - 1) (1 - x)^(alpha - 1). It is symmetric; as a function of t = x^alpha it has no pole at
    0, so the half below 1/2 is integrated over t.
    """
    import torch

    power = min(alpha, 1.0)
    t = np.linspace(0, 0.5**power, 1 << 16)
    x = t ** (1 / power)
    density = x ** (alpha - power) * (1 - x) ** (alpha - 1)
    mass = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    middles = (np.arange(_QUANTILES // 2) + 0.5) / (_QUANTILES // 2)
    lower = np.interp(middles, mass / mass[-1], t) ** (1 / power)
    return torch.from_numpy(np.concatenate([lower, 1 - lower[::-1]]).astype(np.float32)).to(device)
