"""From Open to a run whose lock we hold, or a named refusal. Nothing of saving is here."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepfast.agent.trainer_watch import TrainerWatch, is_alive
from stepfast.core.errors import NoCheckpoint, NotARun, RunHeld
from stepfast.files.disk_errors import storage_failed
from stepfast.files.durable import rename_noreplace
from stepfast.files.locks import RunLock
from stepfast.store import ledger
from stepfast.store.run_directory import RunDirectory
from stepfast.store.staging import clean_leftovers
from stepfast.wire.messages import Open

LAST_WORDS_S = 30.0
_RETRY_S = 0.02


class TrainerDied(Exception):
    """The trainer died while its run was being opened: nobody is left to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run whose lock this process holds."""

    run: RunDirectory
    lock: RunLock
    moved_to: str | None
    attempt: int
    num_committed: int
    since: str

    @property
    def is_fresh(self) -> bool:
        return not self.run.steps()


def open_run(asked: Open, watch: TrainerWatch) -> OpenRun:
    """Make or open the directory and take its lock.

    Raises:
        StepfastError: each refusal of docs/internals/messages.md.
        TrainerDied: nobody waits for the answer any more.
    """
    path = Path(os.path.realpath(asked.path))
    try:
        return _open_run(path, asked, watch)
    except OSError as error:
        raise storage_failed(error, "open the run directory", path) from error


def _open_run(path: Path, asked: Open, watch: TrainerWatch) -> OpenRun:
    since = _now()
    holder = {
        "pid": os.getpid(),
        "trainer_pid": asked.trainer_pid,
        "host": asked.host,
        "since": since,
        "script": asked.script,
    }
    moved_to = None
    is_there = RunDirectory.is_run(path)
    if asked.mode == "require" and not is_there:
        raise _nothing_to_resume(path)
    if asked.mode == "fresh" and is_there:
        # Not opened: a damaged run, too, can be moved out of the way.
        old = _take(path, holder, asked, watch)
        moved_to = _move_away(path)
        old.release()
        is_there = False
    if not is_there:
        try:
            RunDirectory.create(path, uuid.uuid4().hex)
        except NotARun:
            if not RunDirectory.is_run(path):
                raise
            # Another trainer has made it in this moment; the lock decides.
    RunDirectory.open(path)  # refusals come before the lock, which writes into the directory
    lock = _take(path, holder, asked, watch)
    try:
        run = RunDirectory.open(path)  # another trainer may have put a new run there while we waited
        if asked.mode == "require" and not run.steps():
            raise _nothing_to_resume(path)
        clean_leftovers(run)
        events, _ = ledger.read(run.ledger_path)
    except BaseException:
        lock.release()
        raise
    return OpenRun(
        run=run,
        lock=lock,
        moved_to=moved_to,
        attempt=1 + sum(event.get("event") == "opened" for event in events),
        num_committed=sum(event.get("event") == ledger.COMMIT for event in events),
        since=since,
    )


def _take(path: Path, holder: dict[str, Any], asked: Open, watch: TrainerWatch) -> RunLock:
    """Take the lock. While another agent writes the last words of a dead trainer, wait for it."""
    deadline_s = time.monotonic() + LAST_WORDS_S
    lock = RunLock(path)
    while not lock.try_acquire(holder):
        other = lock.holder() or {}
        if time.monotonic() >= deadline_s or _is_living(other, asked.host):
            raise _held(path, other, asked.host)
        if watch.wait_dead(_RETRY_S):
            raise TrainerDied
    return lock


def _is_living(holder: dict[str, Any], host: str) -> bool:
    pid = holder.get("trainer_pid")
    # The holder is written after the lock is taken; for a moment there may be none: not known to live.
    if not isinstance(pid, int):
        return False
    return holder.get("host") != host or is_alive(pid)


def _held(path: Path, holder: dict[str, Any], host: str) -> RunHeld:
    pid = holder.get("trainer_pid", "unknown")
    where = f"{path} is in use by process {pid} on {holder.get('host', 'an unknown host')}"
    what = f"since {holder.get('since', 'an unknown time')}, script {holder.get('script', 'unknown')}"
    if _is_living(holder, host):
        hint = f"stop it (stepfast stop {path}), wait for its end, or train in another directory"
        return RunHeld(f"{where}, {what}", hint=hint)
    return RunHeld(
        f"{where}, {what}; that process is gone, and its agent (process {holder.get('pid', 'unknown')}) "
        f"has been writing its last words for more than {LAST_WORDS_S:g} s",
        hint=f"wait for it, or end it: kill -9 {holder.get('pid', 'PID')}",
    )


def _move_away(path: Path) -> str:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    for number in range(1, 1000):
        target = path.with_name(f"{path.name}.old-{stamp}" + (f"-{number}" if number > 1 else ""))
        try:
            rename_noreplace(path, target)
        except FileExistsError:
            continue
        return str(target)
    raise NotARun(f"{path} cannot be moved away: {path.name}.old-{stamp} exists 999 times", hint="remove some")


def _nothing_to_resume(path: Path) -> NoCheckpoint:
    return NoCheckpoint(
        f'{path} has no checkpoint to resume from, and resume="require" asks for one',
        hint='check the path, or start with resume="auto"',
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
