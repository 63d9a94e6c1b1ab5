"""The checks of `stepfast doctor`: each looks at one thing of a run and says how it is.

They change nothing, and no digest of a tensor is compared: that is `verify`.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from stepfast import __version__
from stepfast.cli.places import Row, age_of, holder_of, rows_of
from stepfast.core.errors import Damaged
from stepfast.files.mounts import DURABLE, IN_MEMORY, free_bytes, mount_of
from stepfast.report import lines
from stepfast.store import ledger
from stepfast.store.run_directory import RunDirectory
from stepfast.store.staging import BAD, REPLACED, STAGING, TRASH

NEEDS_A_HAND: Literal["needs a hand"] = "needs a hand"
State = Literal["ok", "note", "needs a hand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. `hint` is the next thing to do."""

    name: str
    state: State
    text: str
    hint: str = ""


def check_run(run: RunDirectory) -> list[Check]:
    """Every check, in the order they are read."""
    rows, damage = _rows(run)
    events, num_damaged = ledger.read(run.ledger_path)
    is_held = holder_of(run) is not None
    return [
        *_file_system(run),
        *_directory(run),
        *_lock(run),
        *damage,
        *_space(run, rows),
        *_last_save(rows, events),
        *_leftovers(run, is_held=is_held),
        *_ledger(num_damaged),
        *_versions(rows),
    ]


def _file_system(run: RunDirectory) -> Iterator[Check]:
    name = "file system"
    mount = mount_of(run.path)
    if mount is None:
        yield Check(name=name, state="note", text="nothing here tells which file system this is")
        return
    where = f"{mount.kind} at {mount.point}"
    if mount.is_read_only:
        hint = "mount it for writing, or copy the run elsewhere"
        yield Check(name=name, state=NEEDS_A_HAND, text=f"{where}, read-only: nothing can be saved", hint=hint)
    elif mount.kind in DURABLE:
        yield Check(
            name=name, state="ok", text=f"{where}: what is committed survives kill -9, a reboot and a power cut"
        )
    elif mount.kind in IN_MEMORY:
        text = f"{where}: this is memory. What is committed survives kill -9, and is gone after a reboot"
        yield Check(name=name, state="note", text=text, hint="put runs that matter on a disk")
    else:
        text = f"{where}: what is committed survives kill -9; for a power cut nobody has shown it there"
        yield Check(name=name, state="note", text=text, hint=f"what is known to hold: {', '.join(sorted(DURABLE))}")


def _directory(run: RunDirectory) -> Iterator[Check]:
    facts = os.stat(run.path)
    mode = stat.S_IMODE(facts.st_mode)
    if not os.access(run.path, os.W_OK | os.X_OK):
        text = f"you may not write here (owner {facts.st_uid}, mode {mode:o})"
        yield Check(name="directory", state=NEEDS_A_HAND, text=text, hint="change its owner or mode, or copy the run")
    elif mode & 0o022:
        text = f"others may write here (mode {mode:o}); digests show accidents, not intent"
        yield Check(name="directory", state="note", text=text, hint=f"chmod go-w {run.path}")


def _lock(run: RunDirectory) -> Iterator[Check]:
    holder = holder_of(run)
    if holder is None:
        yield Check(name="lock", state="ok", text="free: nobody trains here")
    elif not holder.is_here:
        text = f"held by {holder.words}; whether it lives can only be seen there"
        yield Check(name="lock", state="note", text=text)
    elif holder.is_alive:
        yield Check(name="lock", state="ok", text=f"held by {holder.words}, which lives")
    else:
        pid = holder.fields.get("pid", "PID")
        text = f"{holder.words} is dead, its agent (process {pid}) still holds the lock: it is writing last words"
        hint = f"wait; if it does not end within 10 minutes: kill -9 {pid}"
        yield Check(name="lock", state=NEEDS_A_HAND, text=text, hint=hint)


def _rows(run: RunDirectory) -> tuple[list[Row], list[Check]]:
    name = "checkpoints"
    try:
        rows = rows_of(run)
    except Damaged as error:
        return [], [Check(name=name, state=NEEDS_A_HAND, text=error.message, hint=error.hint)]
    whole = [row for row in rows if row.problem is None]
    found = []
    for row in rows:
        if row.problem is not None:
            text = f"step {lines.count(row.step)} is damaged: {row.problem}"
            hint = "a resume passes over it; delete its directory, or bring it back from a copy"
            if not whole:
                hint = "no checkpoint is whole: bring one back from a copy, or start over: STEPFAST_RESUME=fresh"
            found.append(Check(name=name, state=NEEDS_A_HAND, text=text, hint=hint))
    for tag, step in run.tags().items():
        if step not in run.steps():
            text = f"the tag {tag} names step {lines.count(step)}, which is not there"
            found.append(Check(name=name, state=NEEDS_A_HAND, text=text, hint=f"rm {run.path}/refs/tags/{tag}"))
    if whole:
        shown = ", ".join(lines.count(row.step) for row in whole[-5:])
        text = (
            f"{lines.counted(len(whole), 'checkpoint')} of the right size: step {'… ' if len(whole) > 5 else ''}{shown}"
        )
        found.append(Check(name=name, state="ok", text=f"{text} (digests: stepfast verify)"))
    elif not rows:
        found.append(Check(name=name, state="note", text="none yet: a crash now would start over at step 0"))
    return rows, found


def _space(run: RunDirectory, rows: list[Row]) -> Iterator[Check]:
    free = free_bytes(run.path)
    newest = max((row.manifest for row in rows if row.manifest), key=lambda m: m.step, default=None)
    if newest is None:
        yield Check(name="space", state="ok", text=f"{lines.size(free)} free; how large a save is is not known yet")
        return
    need = newest.size_bytes
    text = f"{lines.size(free)} free, the next save needs at most about {lines.size(need)}"
    if free < need:
        hint = "free space on that disk; training goes on without saving until then"
        yield Check(name="space", state=NEEDS_A_HAND, text=text, hint=hint)
    elif free < 3 * need:
        yield Check(name="space", state="note", text=f"{text}: room for {free // need}")
    else:
        yield Check(name="space", state="ok", text=text)


def _last_save(rows: list[Row], events: list[dict[str, Any]]) -> Iterator[Check]:
    name = "last save"
    newest = max((row.manifest for row in rows if row.manifest and not row.problem), key=lambda m: m.step, default=None)
    if newest is not None:
        age = lines.age(age_of(newest.created))
        yield Check(name=name, state="ok", text=f"step {lines.count(newest.step)} became durable {age}")
    saves = [event for event in events if event.get("event") in (ledger.COMMIT, "failed")]
    if saves and saves[-1].get("event") == "failed":
        text = f"the last one failed: {saves[-1].get('message', 'nothing says why')}"
        yield Check(name=name, state=NEEDS_A_HAND, text=text, hint="mend that; the next save tries again")
    for event in reversed(events):
        if event.get("event") == "resume-differs":
            text = f"step {event.get('step', '?')}, computed again, was not as before ({event.get('what', '?')})"
            hint = "something that decides a step was not given to Run: stepfast log says when"
            yield Check(name="exactness", state=NEEDS_A_HAND, text=text, hint=hint)
        if event.get("event") in ("resume-checked", "resume-differs"):
            break


def _leftovers(run: RunDirectory, *, is_held: bool) -> Iterator[Check]:
    found = sorted(os.listdir(run.checkpoints_path))
    half = [entry for entry in found if entry.startswith((STAGING, TRASH, REPLACED))]
    if half and not is_held:
        text = f"{', '.join(half)}: left over by a writer that died; never chosen"
        yield Check(name="left over", state="note", text=text, hint="nothing to do: the next start clears it away")
    if bad := [entry for entry in found if entry.startswith(BAD)]:
        text = f"{', '.join(bad)}: damaged checkpoints that were moved aside"
        yield Check(name="left over", state="note", text=text, hint="delete them when nobody wants to look at them")


def _ledger(num_damaged: int) -> Iterator[Check]:
    if num_damaged:
        text = f"{lines.counted(num_damaged, 'line')} damaged: the history has a gap, no checkpoint is touched by that"
        yield Check(name="ledger", state="note", text=text)


def _versions(rows: list[Row]) -> Iterator[Check]:
    now = {"stepfast": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy"):
        try:
            now[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    shown = ", ".join(f"{name} {version}" for name, version in now.items())
    newest = max((row.manifest for row in rows if row.manifest), key=lambda m: m.step, default=None)
    was = {} if newest is None else newest.versions
    differs = [
        f"{name} {was[name]} there, {now.get(name, 'none')} here" for name in was if not _same(was[name], now.get(name))
    ]
    if differs:
        text = f"the newest checkpoint was made by others than this Python has: {'; '.join(differs)}"
        hint = "bits are only promised for equal versions; use the Python the run was started with"
        yield Check(name="versions", state="note", text=text, hint=hint)
    else:
        yield Check(name="versions", state="ok", text=shown)


def _same(one: str, other: str | None) -> bool:
    """`2.13.0+cpu` as torch says it, and `2.13.0` as its package does, are the same."""
    return other is not None and (one == other or one.partition("+")[0] == other.partition("+")[0])
