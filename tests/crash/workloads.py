"""The deeds of the real store whose crash states are explored: what is there before, and what the writer does."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import stepfast
from tests.crash.effects import History
from tests.crash.explore import run_writer
from tests.crash.run_check import RUN
from tests.crash.snapshots import make_run, save

WRITER = Path(__file__).parent / "writers" / "saving.py"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Workload:
    """`before`: how many checkpoints there are when the deed begins; `tagged`: one of them, or 0."""

    deed: tuple[str, ...]
    before: int = 0
    tagged: int = 0

    @property
    def name(self) -> str:
        return " ".join(self.deed)


TAKEOVERS = tuple(
    Workload(("take-over", point), before=1)
    for point in (
        "staging:begun",
        "staging:file",
        "staging:manifest",
        "staging:synced",
        "commit:before-rename",
        "commit:after-rename",
        "commit:done",
    )
)
SAVE = Workload(("save",), before=1)
CREATE = Workload(("create",))
PRUNE = Workload(("prune",), before=4, tagged=2)
SAVE_NAMED = Workload(("save-named",), before=1)
SAVE_LATER = Workload(("save-later",), before=1, tagged=1)
CREATE_AGAIN = tuple(Workload(("interrupted", "create", str(fsyncs))) for fsyncs in range(1, 11))
SAVE_AGAIN = tuple(Workload(("interrupted", "save-named", str(fsyncs)), before=1) for fsyncs in range(1, 5))
LATER_AGAIN = Workload(("interrupted", "save-later", "2"), before=1, tagged=1)
ALL = (SAVE, CREATE, PRUNE, SAVE_NAMED, SAVE_LATER, *TAKEOVERS, *CREATE_AGAIN, *SAVE_AGAIN, LATER_AGAIN)


def prepare(workload: Workload, root: Path) -> None:
    if not workload.before:
        return
    run = make_run(root / RUN)
    for step in range(1, workload.before + 1):
        save(run, step, name="kept" if step == workload.tagged else None)


def trace(workload: Workload, folder: Path) -> History:
    """Prepare, and run the writer under strace. What was prepared is durable."""
    root = folder / "root"
    root.mkdir()
    prepare(workload, root)
    return trace_deed(workload.deed, root, folder / "trace")


def trace_deed(deed: tuple[str, ...], root: Path, log: Path) -> History:
    source = Path(next(iter(stepfast.__path__))).parent
    environment = {"PATH": os.defpath, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", str(WRITER), str(root), *deed]
    return run_writer(command, root, log, env=environment)
