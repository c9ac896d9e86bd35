"""`python -m etude COMMAND ...` is `etude COMMAND ...`."""

import sys

from etude.cli import main

sys.exit(main())
