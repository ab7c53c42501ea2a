"""Members: which snapshots are used, chosen by the NLL on held-out examples.

`runs` is the run of each member, oldest member first. `nll` takes weights (combinations, members) and returns the NLL
of each combination. The result is equal weights for the chosen members, with the sum 1, and 0 for the others.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..metrics import Floats

Nll = Callable[[Floats], Floats]


def last_members(runs: Sequence[str], nll: Nll) -> Floats:
    """The last m members of each run, with the m of the lowest NLL.

    Examples:
        >>> last_members(["a", "a", "a"], nll=lambda weights: weights @ [3.0, 1.0, 2.0])
        array([0. , 0.5, 0.5])
    """
    later = np.array([runs[k + 1 :].count(run) for k, run in enumerate(runs)])  # members of the same run
    candidates = np.array([later < m for m in range(1, later.max() + 2)])
    return _best(candidates, nll)[0]


def without_early_members(runs: Sequence[str], nll: Nll) -> Floats:
    """All members except early ones that raise the NLL.

    The oldest remaining member of a run is dropped while that lowers the NLL; of several runs, the one where this
    lowers it most. The last member of each run remains.

    Examples:
        >>> without_early_members(["a", "a", "a"], nll=lambda weights: weights @ [3.0, 1.0, 2.0])
        array([0. , 0.5, 0.5])
    """
    remaining = [[k for k, other in enumerate(runs) if other == run] for run in dict.fromkeys(runs)]
    kept, lowest = _best(np.ones((1, len(runs)), bool), nll)
    while candidates := [run for run in remaining if len(run) > 1]:
        found, value = _best(np.array([(kept > 0) & (np.arange(len(runs)) != run[0]) for run in candidates]), nll)
        if value >= lowest:
            break
        kept, lowest = found, value
        remaining = [[k for k in run if kept[k]] for run in remaining]
    return kept


def _best(candidates: NDArray[np.bool_], nll: Nll) -> tuple[Floats, float]:
    """The weights with the lowest NLL, and this NLL, of sets of members (candidates, members)."""
    weights = candidates / candidates.sum(-1, keepdims=True)
    values = nll(weights)
    best = int(np.argmin(values))
    return weights[best], float(values[best])
