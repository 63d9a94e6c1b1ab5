"""From what was typed (`RUN`, `RUN@500`, `RUN@latest`, `RUN@TAG`) to a run, and what can be seen of it quickly."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stepfast.agent.trainer_watch import is_alive
from stepfast.core.errors import Damaged, FormatTooNew, NoCheckpoint, NotARun, UsageError
from stepfast.files.locks import RunLock
from stepfast.store.manifest import Manifest
from stepfast.store.run_directory import RunDirectory


def open_run(text: str) -> RunDirectory:
    """The run at a path.

    Raises:
        NotARun: with the way to find one.
    """
    try:
        return RunDirectory.open(text)
    except NotARun as error:
        head, at, _ = text.rpartition("@")
        hint = "the runs below a folder: stepfast ls FOLDER"
        if at and RunDirectory.is_run(head):
            hint = f"this command takes a run without a checkpoint: {head}"
        raise NotARun(error.message, hint=hint) from error


def open_at(text: str) -> tuple[RunDirectory, str | None]:
    """The run, and what stood behind the last @."""
    head, at, which = text.rpartition("@")
    if not at or os.path.lexists(text):
        return open_run(text), None
    if not head or not which:
        raise UsageError(f"{text} names no checkpoint", hint="RUN@500, RUN@latest or RUN@TAG")
    return open_run(head), which


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a run's lock, as far as it said so."""

    fields: dict[str, Any]
    is_here: bool
    is_alive: bool
    """The trainer. Where it runs on another host this cannot be seen, and is taken for true."""

    @property
    def words(self) -> str:
        get = self.fields.get
        return (
            f"process {get('trainer_pid', 'unknown')} on {get('host', 'an unknown host')}, "
            f"script {get('script', 'unknown')}, since {local_time(get('since'))}"
        )


def holder_of(run: RunDirectory) -> Holder | None:
    """None when nobody holds the run, or nobody can say."""
    try:
        fields = RunLock(run.path).holder()
    except (Damaged, PermissionError):
        return None
    if fields is None:
        return None
    is_here = fields.get("host") == os.uname().nodename
    pid = fields.get("trainer_pid")
    return Holder(fields=fields, is_here=is_here, is_alive=not is_here or (isinstance(pid, int) and is_alive(pid)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A checkpoint at a glance: its manifest, or what is wrong with it. No digest of a tensor was compared."""

    step: int
    tags: tuple[str, ...]
    manifest: Manifest | None = None
    problem: str | None = None


def rows_of(run: RunDirectory) -> list[Row]:
    """Every checkpoint, ascending. One that retention deletes meanwhile is left out."""
    tags = run.tags()
    found = []
    for step in run.steps():
        mine = tuple(name for name, tagged in tags.items() if tagged == step)
        try:
            manifest = run.manifest(step)
        except NoCheckpoint:
            continue
        except (Damaged, FormatTooNew) as error:
            found.append(Row(step=step, tags=mine, problem=error.message))
            continue
        problem = quick_problem(run, manifest)
        if problem is not None and step not in run.steps():
            continue
        found.append(Row(step=step, tags=mine, manifest=manifest, problem=problem))
    return found


def quick_problem(run: RunDirectory, manifest: Manifest) -> str | None:
    """The first file that is missing or has another size."""
    directory = run.checkpoint_path(manifest.step)
    for stored in manifest.files:
        try:
            facts = os.lstat(directory / stored.name)
        except FileNotFoundError:
            return f"{directory / stored.name} is missing"
        if not stat.S_ISREG(facts.st_mode):
            return f"{directory / stored.name} is not a regular file"
        if facts.st_size != stored.size:
            return f"{directory / stored.name} has {facts.st_size} bytes, it must have {stored.size}"
    return None


def size_on_disk(run: RunDirectory, rows: list[Row]) -> int:
    """Bytes of all checkpoints, files that several of them share counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for row in rows:
        for stored in row.manifest.files if row.manifest else ():
            try:
                facts = os.lstat(run.checkpoint_path(row.step) / stored.name)
            except FileNotFoundError:
                continue
            sizes[facts.st_dev, facts.st_ino] = facts.st_size
    return sum(sizes.values())


def age_of(created: str) -> float:
    """Seconds since a time in UTC as manifests and the ledger write it."""
    return time.time() - datetime.fromisoformat(created).timestamp()


def local_time(text: object) -> str:
    """A time of the ledger or a lock in the reader's time zone; what is no time is shown as it is."""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return str(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def shown_place(manifest: Manifest) -> tuple[str, str]:
    """Epoch as people count it, and the next batch; of a run that has ended there is none."""
    if manifest.finished is not None:
        return "end", "–"
    return f"{manifest.epoch + 1:,}", f"{manifest.batch:,}"
