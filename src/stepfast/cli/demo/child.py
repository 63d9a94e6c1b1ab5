"""`python -m stepfast.cli.demo.child`: the script of a session, with somebody watching. Started by the demo only.

Each time the loop asks for a batch, its number goes down a pipe; at one of them the process waits there to be killed.
The script knows nothing of that.
"""

from __future__ import annotations

import os
import runpy
import sys

from stepfast.core import points
from stepfast.store.run_directory import RunDirectory

ASKED = "loop:before-fetch"


def main(arguments: list[str]) -> int:
    report_fd, wait_at, script, run_path = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3]
    os.set_inheritable(report_fd, False)  # the agent is not to keep it open
    batch = _first_batch(run_path)

    def asked() -> None:
        nonlocal batch
        os.write(report_fd, b"%d\n" % batch)
        if batch == wait_at:
            os.read(0, 1)  # nobody ever writes there: this ends with the process, or with the demo
            os._exit(1)
        batch += 1

    points.plant(ASKED, asked)
    sys.argv = [script, run_path]
    runpy.run_path(script, run_name="__main__")
    os.write(report_fd, b"%d\n" % batch)
    return 0


def _first_batch(run_path: str) -> int:
    """Where a start of the script will go on."""
    if not RunDirectory.is_run(run_path):
        return 0
    run = RunDirectory.open(run_path)
    return run.manifest(steps[-1]).batch if (steps := run.steps()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
