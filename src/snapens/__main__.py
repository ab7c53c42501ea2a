"""`python -m snapens`."""

import sys

from .cli import main

sys.exit(main())
