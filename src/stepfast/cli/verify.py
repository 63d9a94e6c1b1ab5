"""`stepfast verify`: every byte of checkpoints read and compared with their digests."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepfast.cli.output import put, put_json, talk
from stepfast.cli.places import holder_of, open_at
from stepfast.core.errors import Damaged, FormatTooNew, NoCheckpoint
from stepfast.report import lines
from stepfast.report.plain import escaped
from stepfast.store import ledger
from stepfast.store.reading import CheckpointReader, Problem
from stepfast.store.run_directory import RunDirectory

_SLOW_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One checkpoint. No problem: every byte fits."""

    step: int
    num_files: int = 0
    size_bytes: int = 0
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    shared: dict[str, int] = field(default_factory=dict)
    """Files of which one copy on the disk serves several checkpoints: how many."""


def verify(place: str, *, as_json: bool) -> int:
    """Exit status 1 when something is damaged, or when there is nothing to verify."""
    run, which = open_at(place)
    steps = run.steps() if which is None else [run.resolve(which)]
    if not steps:
        raise NoCheckpoint(
            f"{run.path} has no checkpoint, so nothing was verified", hint="`stepfast status` says whether it trains"
        )
    found = _verify_all(run, steps, is_whole_run=which is None)
    whole_run = _of_the_run(run) if which is None else []
    is_damaged = any(one.problems for one in found) or bool(whole_run) or not found
    if as_json:
        put_json(
            {
                "run": str(run.path),
                "intact": not is_damaged,
                "problems": whole_run,
                "checkpoints": [_json(one) for one in found],
            }
        )
        return int(is_damaged)
    for one in found:
        _put(one)
    for text in whole_run:
        put(escaped(text), style="red")
    num_bad = sum(bool(one.problems) for one in found)
    if num_bad:
        talk(f"{num_bad} of {lines.counted(len(found), 'checkpoint')} damaged: a resume passes over them")
    return int(is_damaged)


def _verify_all(run: RunDirectory, steps: Sequence[int], *, is_whole_run: bool) -> list[Verified]:
    found = []
    began = time.monotonic()
    for number, step in enumerate(steps, 1):
        if time.monotonic() - began > _SLOW_S and sys.stderr.isatty():
            print(
                f"\rverifying step {lines.count(step)}, {number} of {len(steps)} ", end="", file=sys.stderr, flush=True
            )
        try:
            found.append(_verify(run, step))
        except NoCheckpoint:
            if not is_whole_run:
                raise
            talk(f"step {lines.count(step)} was deleted meanwhile by the run's own retention")
    if time.monotonic() - began > _SLOW_S and sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return found


def _verify(run: RunDirectory, step: int) -> Verified:
    """Raises NoCheckpoint when it is deleted under our hands."""
    try:
        reader = CheckpointReader(run, step)
    except (Damaged, FormatTooNew) as error:
        return Verified(step=step, problems=(Problem(file="manifest.json", leaf=None, what=error.message),))
    problems = reader.verify(past_page_cache=True)
    if problems and run.read_manifest(step)[1] != reader.manifest_sha256:
        return _verify(run, step)  # replaced meanwhile by a later state of the same step
    committed = _committed(run).get(step, reader.manifest_sha256)
    # The line is written after the rename: of the newest step of a living run it may still be on its way.
    is_settled = step != run.steps()[-1] or holder_of(run) is None
    if committed != reader.manifest_sha256 and is_settled:
        what = f"is not the one the ledger says was committed ({escaped(committed[:12])}…)"
        problems.append(Problem(file="manifest.json", leaf=None, what=what))
    extra = [f"{name} is not of this checkpoint, and is never read" for name in reader.extra_files()]
    shared = {}
    for stored in reader.manifest.files:
        try:
            num_links = os.lstat(reader.path / stored.name).st_nlink
        except FileNotFoundError:
            continue
        if num_links > 1:
            shared[stored.name] = num_links
    return Verified(
        step=step,
        num_files=len(reader.manifest.files),
        size_bytes=reader.manifest.size_bytes,
        problems=tuple(problems),
        notes=tuple(extra),
        shared=shared,
    )


def _committed(run: RunDirectory) -> dict[int, str]:
    """The SHA-256 of each step's manifest as the last commit line of that step has it."""
    events, _ = ledger.read(run.ledger_path)
    return {
        event["step"]: event["manifest_sha256"]
        for event in events
        if event.get("event") == ledger.COMMIT
        and isinstance(event.get("step"), int)
        and isinstance(event.get("manifest_sha256"), str)
    }


def _of_the_run(run: RunDirectory) -> list[str]:
    """What belongs to no checkpoint: refs that lead nowhere."""
    problems = []
    steps = run.steps()
    try:
        for name, step in run.tags().items():
            if step not in steps:
                problems.append(f"the tag {name} names step {step}, which is not there")
    except Damaged as error:
        problems.append(error.message)
    return problems


def _put(one: Verified) -> None:
    step = f"step {lines.count(one.step)}"
    if not one.problems:
        put(f"{step}: intact, {lines.counted(one.num_files, 'file')}, {lines.size(one.size_bytes)}", style="green")
    else:
        put(f"{step}: DAMAGED", style="red", bold=True)
    for problem in one.problems:
        share = one.shared.get(problem.file, 1)
        also = f" (this copy serves {share} checkpoints)" if share > 1 else ""
        put(escaped(f"  {problem}{also}"))
    if one.shared and not one.problems:
        many = max(one.shared.values())
        put(f"  {lines.counted(len(one.shared), 'file')} shared with others; one copy serves up to {many} checkpoints")
    for note in one.notes:
        put(escaped(f"  {note}"))


def _json(one: Verified) -> dict[str, Any]:
    return {
        "step": one.step,
        "intact": not one.problems,
        "num_files": one.num_files,
        "size_bytes": one.size_bytes,
        "problems": [{"file": p.file, "leaf": p.leaf, "what": p.what} for p in one.problems],
        "notes": one.notes,
        "shared": one.shared,
    }
