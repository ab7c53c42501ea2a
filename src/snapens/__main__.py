"""`python -m snapens`."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109 (pathlib would be another import)
    del sys.path[0]  # `python -m` adds the current folder, which may be a run folder: data, never code

from .cli import main
from .cli.processes import leave

leave(main())
