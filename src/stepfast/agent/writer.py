"""The one thread that writes: checkpoints and ledger lines, in the order they came. Talks to nobody."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepfast.core.errors import StepfastError
from stepfast.wire.messages import Committed, Drained, Failed, Free, Snapshot

if TYPE_CHECKING:
    from stepfast.agent.opening import OpenRun
    from stepfast.persist.previous import Previous, ReadBack
    from stepfast.policy.retention import Plan
    from stepfast.store.manifest import Manifest

FRESH_COPY_EVERY = 20
"""Hard links share fate: every so many commits all files are written anew."""

_NICE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A complete slot to bring to disk."""

    snapshot: Snapshot
    slot: memoryview
    received_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line for the ledger, with the time it was sent at."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Everything before it is written: comes back as Drained."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What became of a save that commands asked for."""

    wanted_by: tuple[int, ...]
    outcome: Committed | Failed


Result = Committed | Failed | Free | Drained | Answered
Job = Save | Line | Mark


class Writer:
    """Give it jobs; it wakes `fileno()` when there are results."""

    def __init__(self, opened: OpenRun, keep_newest: int) -> None:
        self._opened = opened
        self._keep_newest = keep_newest
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: deque[Result] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._num_committed = opened.num_committed
        self._last_step: int | None = None
        self._committed: set[int] = set()
        self._damaged: set[int] = set()
        self._read_back: ReadBack | None = None
        self._is_over = False
        # A daemon: a disk that hangs must not keep the process beyond its deadline.
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._wake

    @property
    def has_ended(self) -> bool:
        """Nothing is written any more: as asked for, or by a fault of ours."""
        return self._is_over

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def end(self) -> None:
        """No job comes any more; the thread ends after those that are waiting."""
        self._jobs.put(None)

    def results(self) -> list[Result]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        taken = []
        while self._results:
            taken.append(self._results.popleft())
        return taken

    def _run(self) -> None:
        try:
            # The loop must not wait for a core because we digest.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
            while (job := self._jobs.get()) is not None:
                if isinstance(job, Save):
                    self._save(job)
                elif isinstance(job, Line):
                    self._append(job.fields)
                else:
                    self._give(Drained(id=job.id))
        finally:
            # Set before waking: the thread itself lives a little longer than its work.
            self._is_over = True
            os.eventfd_write(self._wake, 1)

    def _give(self, result: Result) -> None:
        self._results.append(result)
        os.eventfd_write(self._wake, 1)

    def _save(self, job: Save) -> None:
        from stepfast.persist.persist import check_tag, persist, read_draft
        from stepfast.store.ledger import COMMIT

        run = self._opened.run
        snapshot = job.snapshot
        step = -1
        try:
            draft = read_draft(snapshot.draft)
            step = draft.step
            for name in snapshot.names:
                check_tag(name)
            fresh_copies = self._num_committed % FRESH_COPY_EVERY == FRESH_COPY_EVERY - 1
            facts = persist(
                run,
                job.slot,
                snapshot.spans,
                draft,
                snapshot.linked,
                previous=self._previous(draft, snapshot.linked),
                incarnation=f"{self._opened.attempt}-{os.getpid()}",
                received_s=job.received_s,
                fresh_copies=fresh_copies,
            )
            for name in [*([draft.name] if draft.name is not None else []), *snapshot.names]:
                run.set_tag(name, step)
        except StepfastError as error:
            failed = Failed(step=step, code=error.code, message=error.message, hint=error.hint)
            self._give(Free(slot=snapshot.slot))
            self._append({"event": "failed", "time": now(), "step": step, "code": error.code, "message": error.message})
            self._give(failed)
            self._answer(snapshot, failed)
            return
        self._last_step = step
        self._committed.add(step)
        self._damaged.discard(step)
        self._num_committed += 1
        self._give(Free(slot=snapshot.slot))
        self._append(
            {
                "event": COMMIT,
                "time": now(),
                "step": step,
                "revision": facts.revision,
                "reasons": list(draft.reasons),
                "name": draft.name,
                "manifest_sha256": facts.manifest_sha256,
                "bytes_written": facts.bytes_written,
                "linked_files": len(facts.linked_files),
                "k0_s": draft.k0_s,
                "k1_s": facts.k1_s,
            }
        )
        committed = Committed(
            step=step,
            revision=facts.revision,
            k1_s=facts.k1_s,
            bytes_written=facts.bytes_written,
            manifest_sha256=facts.manifest_sha256,
            linked_files=list(facts.linked_files),
            tidied=self._tidy(step, facts.linked_files),
        )
        self._give(committed)
        self._answer(snapshot, committed)

    def _answer(self, snapshot: Snapshot, outcome: Committed | Failed) -> None:
        if snapshot.wanted_by:
            self._give(Answered(wanted_by=tuple(snapshot.wanted_by), outcome=outcome))

    def _previous(self, draft: Manifest, linked: Sequence[str]) -> Previous | None:
        """Whose unchanged files may be shared: what was committed last, or what this trainer resumed from."""
        from stepfast.persist.previous import Previous

        run, read_back = self._opened.run, self._has_read_back()
        if self._last_step is not None:
            return Previous.read(run, self._last_step, read_back)
        if draft.parent is not None:
            return Previous.read(run, draft.parent["step"], read_back)
        return Previous.newest(run, draft.step, linked, read_back)

    def _has_read_back(self) -> ReadBack:
        from stepfast.persist.previous import ReadBack

        if self._read_back is None:
            self._read_back = ReadBack()
        return self._read_back

    def _tidy(self, step: int, linked: Sequence[str]) -> list[int]:
        """Apply retention. `linked` are the files of `step` that were not written for it."""
        from stepfast.store.tidy import apply_plan

        run = self._opened.run
        try:
            planned = self._plan()
            if planned.delete and self._find_damage(step, linked, planned):
                planned = self._plan()
            gone = apply_plan(run, planned)
        except (StepfastError, OSError) as error:
            print(f"{now()} tidy: {error}", file=sys.stderr, flush=True)
            return []
        if gone:
            why = {str(step): planned.reasons[step] for step in gone}
            self._append({"event": "tidied", "time": now(), "steps": gone, "reasons": why})
        return gone

    def _plan(self) -> Plan:
        from stepfast.policy.retention import Kept, Retention, plan

        run, tags = self._opened.run, self._opened.run.tags()
        known = [
            Kept(
                step=step,
                # Its digests were made from memory, its writes came back without an error, and what it shares was
                # read back before it was linked.
                verified=False if step in self._damaged else True if step in self._committed else None,
                tags=tuple(tag for tag, tagged in tags.items() if tagged == step),
            )
            for step in run.steps()
        ]
        return plan(known, Retention(newest=self._keep_newest))

    def _find_damage(self, step: int, linked: Sequence[str], planned: Plan) -> bool:
        """Before the last checkpoint goes that does not share a file with `step`: is that file still whole?

        The checkpoints that stay stand and fall with it. One with a tag does not count: it may be very old.
        """
        run, read_back = self._opened.run, self._has_read_back()
        inodes = {one: _inodes(run.checkpoint_path(one)) for one in {*planned.keep, *planned.delete, step}}
        tagged = set(run.tags().values())
        stay = [one for one in planned.keep if one not in tagged and one not in self._damaged] + [step]
        found = set()
        for name in linked:
            inode = inodes[step][name]
            if all(inode in inodes[one].values() for one in planned.delete):
                continue
            if not all(inode in inodes[one].values() for one in stay):
                continue
            stored = run.manifest(step).file(name)
            assert stored is not None, f"{name} was linked, and is not in the manifest"
            if not read_back.is_whole(run.checkpoint_path(step), stored, again=True):
                found |= {one for one, those in inodes.items() if inode in those.values()}
                why = f"{run.checkpoint_path(step) / name}: the bytes on disk do not fit their digest"
                self._append({"event": "damaged", "time": now(), "steps": sorted(found), "message": why})
        self._damaged |= found
        return bool(found)

    def _append(self, fields: dict[str, Any]) -> None:
        from stepfast.store import ledger

        try:
            ledger.append(self._opened.run.ledger_path, fields)
        except StepfastError as error:
            # The history has a gap; what is committed is committed.
            print(f"{now()} ledger: {error}: {fields}", file=sys.stderr, flush=True)


def _inodes(directory: Path) -> dict[str, int]:
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
