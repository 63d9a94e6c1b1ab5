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


def create_again(path: Path, fsyncs: int) -> None:
    """The first process that makes the run dies at its n-th directory sync; the next one makes it."""
    real, left = durable.fsync_dir, fsyncs

    def counted(directory: durable.AnyPath) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()
        real(directory)

    def first() -> None:
        durable.fsync_dir = counted
        make_run(path)

    in_child(first)
    if RunDirectory.is_run(path):
        say("made")
        save(RunDirectory.open(path), 1)
        say("saved 1")
    else:
        create(path)


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


def prune_all_but_two(path: Path) -> None:
    run = RunDirectory.open(path)
    doomed = [1, 3]  # of 1 to 5; 2 is tagged
    for step in doomed:
        say(f"doomed {step}")
    assert prune(run, newest=2) == doomed


def take_over(path: Path, where: str) -> None:
    """A writer dies at the fault point `where`; the next one trusts what it finds, cleans, and saves."""

    def first() -> None:
        points.plant(where, die)
        save(RunDirectory.open(path), 2)

    in_child(first)
    run = RunDirectory.open(path)
    clean_leftovers(run)
    for step in run.steps():
        say(f"found {step}")
    save(run, 2 if run.steps() == [1] else 3, incarnation="2-2")
    say(f"saved {run.steps()[-1]}")


def main(root: str, deed: str, *arguments: str) -> None:
    path = Path(root) / RUN
    match deed, *arguments:
        case ["create"]:
            create(path)
        case ["create-again", fsyncs]:
            create_again(path, int(fsyncs))
        case ["save"]:
            save_next(path)
        case ["save-named"]:
            save_named(path)
        case ["save-later"]:
            save_later(path)
        case ["prune"]:
            prune_all_but_two(path)
        case ["take-over", where]:
            take_over(path, where)
        case _:
            raise SystemExit(f"unknown deed: {deed} {arguments}")


if __name__ == "__main__":
    main(*sys.argv[1:])
