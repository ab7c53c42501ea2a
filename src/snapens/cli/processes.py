"""The processes that torchrun starts for one command: all of them train, and only the first one prints."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..lab.engine.world import World


def is_first() -> bool:
    """Whether this process prints: it has rank 0, or torchrun did not start it. Torch is not imported for this."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0"


def world() -> "World":
    """The processes that train together; the first call connects them.

    Call this before anything that may fail in one process only, and run that part inside `World.agree`.
    """
    from ..lab.engine.world import joined

    return joined()


def end_others(status: int) -> None:
    """After the training, end the processes that do not print, with this status."""
    if not is_first():
        sys.exit(status)


def leave(status: int) -> None:
    """End this process; at once if it is connected to others, because threads of gloo could abort the interpreter."""
    distributed = sys.modules.get("torch.distributed")  # imported only by commands that train
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
