"""`python -m stepfast`: the command `stepfast` where its script is not on the PATH."""

from __future__ import annotations

import sys

from stepfast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
