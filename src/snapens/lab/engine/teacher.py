"""Teachers: the ensemble of a finished run that the network of another run imitates."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from os import PathLike

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from ...combination import Combination
from ...errors import MismatchError, StoreError
from ..data.protocol import Data, Placed
from ..recipe.batch import Batch
from ..recipe.objectives import Distillation, Objective, Teacher
from ..records.run import Run
from .network import accelerated, compile_blocks
from .twin import Twin

Folders = Sequence[str | PathLike[str]]
Loss = Callable[[Tensor, Batch], Tensor]


def teacher_of(folder: str | PathLike[str], combination: Combination | None = None) -> Teacher:
    """The teacher of a recipe: a combination of the members of a finished run, by default of all of them."""
    run = Run(folder)
    _require_finished(run)
    members = run.snapshots.members
    return Teacher.combining((combination or Combination(members)).among(members))


def find(teacher: Teacher, folders: Folders) -> Run:
    """The run of a teacher, which must be in one of the folders."""
    for run in map(Run, folders):
        if run.identity == teacher.run:
            _require_finished(run)
            return run
    given = ", ".join(map(str, folders)) or "none"
    raise StoreError(
        f"teachers must contain the folder of the run {teacher.run}, got {given}: pass the folder of that run"
    )


def prepared(objective: Objective, placed: Placed, folders: Folders = ()) -> Loss:
    """The objective of a step, with its teacher, if it has one, on the device of the data."""
    if isinstance(objective, Distillation):
        return Taught(objective, find(objective.teacher, folders), placed)
    return objective


class Taught:
    """An objective whose teacher predicts for the transformed inputs of each batch.

    The members are in eval mode and have no gradients. On a GPU they have bfloat16 weights and compiled blocks, and the
    step captures them with the network.
    """

    def __init__(self, objective: Distillation, run: Run, placed: Placed) -> None:
        _require_same_data(run, placed.data)
        self._objective, device = objective, placed.device
        teacher = objective.teacher.combination
        ensemble = run.ensemble(combination=teacher, raw=False, device=device, import_network=True)
        shares = ensemble.combination.shares
        self._members = [_member(member, run.recipe.network.name, device) for member in ensemble.members]
        logs = [math.log(share / sum(shares)) for share in shares]
        self._log_shares = torch.tensor(logs, device=device)[:, None, None]  # (members, 1, 1)

    def __call__(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The loss of logits (batch, classes)."""
        return self._objective(outputs, batch._replace(teacher=self.log_mean(batch.inputs)))

    @torch.no_grad()
    def log_mean(self, inputs: Tensor) -> Tensor:
        """The logarithm of the weighted mean of the members' probabilities (batch, classes)."""
        found = torch.stack([log_softmax(member(inputs).float(), 1) for member in self._members])
        return (found + self._log_shares).logsumexp(0)


def _member(member: nn.Module, name: str, device: torch.device) -> nn.Module:
    member = accelerated(member, name)
    if device.type != "cuda":
        return member
    working = Twin(member, accelerated(deepcopy(member), name)).network
    compile_blocks(working)
    return working


def _require_finished(run: Run) -> None:
    _ = run.recipe  # a folder without a run has its own error
    if not run.finished:
        raise StoreError(f"teacher must be a finished run, got {run.path}: resume it to finish it, or choose another")


def _require_same_data(run: Run, data: Data) -> None:
    """Require that the network is trained on the data of its teacher, with the same examples held out."""
    ours = data.described()
    differing = [name for name in run.data if name != "augmentation" and run.data[name] != ours.get(name)]
    if differing:
        raise MismatchError(
            f"data must be that of the teacher in {run.path}, got other {', '.join(differing)}: "
            "use the teacher's data set and held-out examples"
        )
