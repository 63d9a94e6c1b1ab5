"""One deed of the real store, to be traced. Lines `ACK ...` are promises; `run_check` says what they mean.

saving.py ROOT DEED [ARGUMENT]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from stepfast.core import points
from stepfast.files import durable
from stepfast.store.run_directory import RunDirectory
from stepfast.store.staging import clean_leftovers
from tests.crash.run_check import RUN
from tests.crash.snapshots import make_run, prune, save, say


def in_child(deed: Callable[[], object]) -> None:
    """Run `deed` in a process that dies in the middle, without a chance to tidy up."""
    if not (child := os.fork()):
        try:
            deed()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9, "the child was meant to die at its fault"


def die() -> None:
    os._exit(9)


def create(path: Path) -> None:
    run = make_run(path)
    say("made")
    save(run, 1)
    say("saved 1")


def interrupted(path: Path, deed: str, fsyncs: int) -> None:
    """A process dies at its n-th sync of a directory, before it; the next one goes on from what it finds."""
    real, left = durable.fsync_dir, fsyncs

    def counted(directory: durable.AnyPath) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()
        real(directory)

    def first() -> None:
        setattr(durable, "fsync_dir", counted)  # noqa: B010 - a function is no variable to mypy
        DEEDS[deed](path)

    in_child(first)
    go_on(path)


def go_on(path: Path) -> None:
    """What a new writer does: trust what it finds, clean up, and save the next step."""
    run = RunDirectory.open(path) if RunDirectory.is_run(path) else make_run(path)
    clean_leftovers(run)
    say("made")
    for step in run.steps():
        say(f"found {step}")
    for name, step in run.tags().items():
        say(f"tag {name} {step}")
    following = max(run.steps(), default=0) + 1
    save(run, following, incarnation="2-2")
    say(f"saved {following}")


def save_next(path: Path) -> None:
    run = RunDirectory.open(path)
    save(run, 2)
    say("saved 2")


def save_named(path: Path) -> None:
    run = RunDirectory.open(path)
    save(run, 2, name="best")
    say("saved 2")
    say("tag best 2")


def save_later(path: Path) -> None:
    """Later in the same step: the checkpoint that is there is replaced."""
    run = RunDirectory.open(path)
    save(run, 1, revision=1)
    say("saved 1 1")


def prune_all_but_one(path: Path) -> None:
    run = RunDirectory.open(path)
    doomed = [1, 3]  # of 1 to 4; 2 is tagged
    for step in doomed:
        say(f"doomed {step}")
    assert prune(run, newest=1) == doomed


def take_over(path: Path, where: str) -> None:
    """A writer dies at the fault point `where`; the next one takes over."""

    def first() -> None:
        points.plant(where, die)
        save(RunDirectory.open(path), 2)

    in_child(first)
    go_on(path)


DEEDS: dict[str, Callable[[Path], None]] = {
    "create": create,
    "save": save_next,
    "save-named": save_named,
    "save-later": save_later,
    "prune": prune_all_but_one,
    "go-on": go_on,
}


def main(root: str, deed: str, *arguments: str) -> None:
    path = Path(root) / RUN
    match deed, *arguments:
        case ["take-over", where]:
            take_over(path, where)
        case ["interrupted", first, fsyncs]:
            interrupted(path, first, int(fsyncs))
        case [name]:
            DEEDS[name](path)


if __name__ == "__main__":
    main(*sys.argv[1:])
