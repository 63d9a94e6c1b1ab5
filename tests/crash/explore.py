"""Builds each legal crash state that differs as a tree, opens it with a check, counts what the check says.

The check is a Python function that runs in this process: hundreds of states a second instead of twenty.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.crash.calls import follow
from tests.crash.effects import History, Start
from tests.crash.states import READINGS, Choice, Point, Reading, Tree, choices, digest, points, tree_after
from tests.crash.trace import read_calls, record


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What is wrong with a crash state: something acknowledged is gone, or something listed is not whole."""

    kind: Literal["lost", "half", "broken"]
    what: str


Check = Callable[[Path, tuple[str, ...]], Harm | None]
"""Gets the crashed directory (it may change it) and all that was promised."""

Known = set[tuple[bytes, tuple[str, ...]]]
"""Crash states seen before, by tree and promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    harm: Harm
    reading: Reading
    where: str
    missing: str

    def __str__(self) -> str:
        where = f"crash {self.where} ({self.reading})"
        return f"{self.harm.kind}: {self.harm.what}\n  {where}\n  not durable: {self.missing}"


@dataclass(slots=True)
class Report:
    points: int = 0
    built: int = 0
    checked: int = 0
    trees: set[bytes] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, kind: str) -> int:
        return sum(finding.harm.kind == kind for finding in self.findings)

    def __str__(self) -> str:
        counts = f"{self.points} moments, {self.built} states, {len(self.trees)} trees, {self.checked} checked"
        harms = ", ".join(f"{self.count(kind)} {kind}" for kind in ("lost", "half", "broken"))
        return f"{counts}: {harms} ({self.seconds:.1f} s)"


def run_writer(command: Sequence[str], root: Path, log: Path, *, env: dict[str, str] | None = None) -> History:
    """Trace a writer that works below `root` and prove the trace: replayed in full it is the real tree."""
    root = root.resolve()
    start = Start.read(root)
    record(command, log, env=env)
    history = follow(read_calls(log, root), root, start, Path.cwd())
    assert history.effects, f"the trace holds no change below {root}"
    prove_replay(history, root)
    return history


def prove_replay(history: History, root: Path) -> None:
    everything = Point(label="the end", effects=len(history.effects), durable=frozenset(), promises=())
    replayed = tree_after(history, everything, dict.fromkeys(range(len(history.effects)), "whole"))
    nothing = Point(label="", effects=0, durable=frozenset(), promises=())
    real_start = Start.read(root)
    real_history = History(
        start=real_start, effects=(), events=(), folders=frozenset(real_start.folders), links=real_start.links
    )
    real = tree_after(real_history, nothing, {})
    wrong = sorted(
        path
        for path in replayed.keys() | real.keys()
        if path not in replayed
        or path not in real
        or (replayed[path].kind, replayed[path].content) != (real[path].kind, real[path].content)
    )
    if wrong or names_of_one_file(replayed) != names_of_one_file(real):
        raise AssertionError(f"the replayed trace differs from the real directory: {wrong[:5] or 'hard links'}")


def names_of_one_file(tree: Tree) -> set[tuple[str, ...]]:
    groups: dict[int, list[str]] = {}
    for path, node in tree.items():
        if node.kind == "file":
            groups.setdefault(node.number, []).append(path)
    return {tuple(sorted(paths)) for paths in groups.values() if len(paths) > 1}


def build(tree: Tree, where: Path) -> None:
    first: dict[int, str] = {}
    where.mkdir()
    for path, node in tree.items():
        full = f"{where}/{path}"
        if node.kind == "folder":
            os.mkdir(full)
        elif node.kind == "link":
            os.symlink(node.content, full)
        elif node.number in first:
            os.link(first[node.number], full)
        else:
            first[node.number] = full
            with open(full, "wb", buffering=0) as file:
                file.write(node.content)


@contextmanager
def scratch() -> Iterator[Path]:
    """In memory where possible: states are many, small and short-lived."""
    folder = tempfile.mkdtemp(prefix="crash-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder)


def missing(history: History, point: Point, choice: Choice) -> str:
    lost = [
        f"{history.effects[number].label}{f' ({choice[number]})' if number in choice else ''}"
        for number in point.pending()
        if choice.get(number) != "whole"
    ]
    return "; ".join(lost) or "nothing"


def explore(
    history: History,
    check: Check,
    *,
    readings: Sequence[Reading] = READINGS,
    without: Collection[int] = (),
    promised: tuple[str, ...] = (),
    known: Known | None = None,
    limit: int = 128,
    extra: int = 16,
    seed: int = 0,
    stop_after: int = 0,
    max_states: int = 0,
) -> Report:
    """Check every crash state not in `known` (which grows). 0: no limit for `stop_after`, `max_states`.

    Args:
        without: numbers of syncs that are pretended never to have happened.
        promised: what was promised before the history began.
        limit: up to so many subsets of what is not durable are all tried; of more, the telling and `extra` random.
    """
    began, report, seen = time.monotonic(), Report(), known if known is not None else set()
    rng = random.Random(seed)
    with scratch() as folder:
        for reading in readings:
            undisturbed = {(point.effects, point.durable, point.promises) for point in points(history, reading)}
            for point in points(history, reading, without=without):
                if without and (point.effects, point.durable, point.promises) in undisturbed:
                    continue  # the left-out sync makes no difference here
                report.points += 1
                for choice in choices(history, point, reading, limit=limit, extra=extra, rng=rng):
                    report.built += 1
                    tree = tree_after(history, point, choice)
                    key = (digest(tree), point.promises)
                    if key in seen:
                        continue
                    seen.add(key)
                    report.trees.add(key[0])
                    report.checked += 1
                    harm = open_state(
                        tree, folder / f"state-{report.checked}", check, point.label, (*promised, *point.promises)
                    )
                    if harm is not None:
                        lost = missing(history, point, choice)
                        report.findings.append(Finding(harm=harm, reading=reading, where=point.label, missing=lost))
                    if (stop_after and len(report.findings) >= stop_after) or report.checked == max_states:
                        report.seconds = time.monotonic() - began
                        return report
    report.seconds = time.monotonic() - began
    return report


def open_state(tree: Tree, where: Path, check: Check, label: str, promises: tuple[str, ...]) -> Harm | None:
    build(tree, where)
    try:
        return check(where, promises)
    except Exception as error:
        error.add_note(f"in the crash state {label}: {[(path, len(node.content)) for path, node in tree.items()]}")
        raise
    finally:
        shutil.rmtree(where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """What happens when one fsync of the writer is left out."""

    label: str
    finding: Finding | None


def leave_out_each(history: History, check: Check, known: Known, *, together: bool = False) -> list[Barrier]:
    """Mutation test of the writer *and* of the check: an fsync nobody misses is waste, or the check is blind.

    `known` are the states of the unchanged history, which are all good: only new ones are opened. `together`: all
    syncs of one file or directory at once, where one may cover for the other.
    """
    groups: dict[str, list[int]] = {}
    for number, sync in enumerate(history.syncs):
        groups.setdefault(sync.label if together else f"{number:2} {sync.label}", []).append(number)
    barriers = []
    for label, numbers in groups.items():
        report = explore(history, check, without=numbers, known=set(known), stop_after=1, limit=128, extra=8)
        found = report.findings[0] if report.findings else None
        barriers.append(Barrier(label=label, finding=found))
    return barriers


def show_barriers(barriers: Sequence[Barrier]) -> str:
    return "\n".join(
        f"{barrier.label:70} "
        + (f"needed: {barrier.finding.harm.what} [{barrier.finding.reading}]" if barrier.finding else "NOT NEEDED")
        for barrier in barriers
    )


def writer_command(script: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-B", str(script), *arguments]
