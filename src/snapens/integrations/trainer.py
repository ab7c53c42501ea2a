"""A run inside the Trainer of a framework, whose checkpoints hold the state of the ensembler."""

from typing import Any

import torch.distributed as dist

from ..ensembler import SnapshotEnsembler
from ..errors import StoreError


def begin(*arguments: Any, state: dict[str, Any] | None, remedy: str, **options: Any) -> SnapshotEnsembler:
    """An ensembler that continues at the `state` of a checkpoint or, without one, begins with an empty store.

    `arguments` and `options` are those of `SnapshotEnsembler`. All processes train the model: the Trainer may hide its
    wrapper. `remedy` says what to do if the store is not empty.
    """
    world = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    ensembler = SnapshotEnsembler(*arguments, resume=True, process_group=world, **options)
    try:
        if state:
            ensembler.load_state_dict(state)
        elif held := ensembler.state_dict()["store"]["snapshots"]:
            raise StoreError(
                f"store must be without snapshots unless the training resumes from a checkpoint, got "
                f"{ensembler.snapshots} with those of steps {', '.join(map(str, held))}: {remedy}"
            )
    except BaseException:
        ensembler.close()  # for the next attempt
        raise
    return ensembler
