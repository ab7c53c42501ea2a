"""`python -m snapens.cli`."""

import sys

from . import main

sys.exit(main())
