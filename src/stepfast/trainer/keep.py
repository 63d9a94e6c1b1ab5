"""What is kept at each boundary, and what is done with it: a record of the boundary, a save when one is due, the row
in progress.bin, the check of a resume. The loop itself is trainer/loop.py."""

from __future__ import annotations

import signal
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import xxhash

from stepfast.core.errors import StepfastError, StorageFailed
from stepfast.core.protocols import Framework
from stepfast.core.words import Cursor
from stepfast.policy.allowance import Allowance, Thinning
from stepfast.policy.triggers import Clocks
from stepfast.report.lines import age
from stepfast.store.progress import NO_DIGEST, ProgressRow, ProgressWriter
from stepfast.trainer.history import History
from stepfast.trainer.record import KeptRecord, Record
from stepfast.trainer.saver import Saver, SaveRequest
from stepfast.trainer.selfcheck import SelfCheck
from stepfast.trainer.signals import Signals

SHARE = 0.01
"""Of the loop's time: so much may digests of batches take, and records half of it."""


@dataclass(slots=True, kw_only=True)
class Keep:
    """One run's keeping."""

    framework: Framework
    batch_digest: Callable[[object], bytes]
    saver: Saver
    clocks: Clocks
    signals: Signals
    history: History
    progress: ProgressWriter
    check: SelfCheck
    settings: Mapping[str, object]
    say: Callable[[str], None]
    saved_step: int | None = None
    saved_finished: str | None = None
    saved_revision: int = 0
    wanted_names: list[str] = field(default_factory=list)
    stop_asked: bool = False
    left_on_purpose: bool = False
    kept: KeptRecord | None = None
    _parameters: list[object] = field(default_factory=list)
    _digest: xxhash.xxh3_128 | None = None
    _progress_failed: bool = False
    _digests: Thinning = field(default_factory=Thinning)
    _for_digests: Allowance = field(default_factory=lambda: Allowance(share=SHARE, first_s=0.1))
    _for_records: Allowance = field(default_factory=lambda: Allowance(share=SHARE / 2, first_s=0.25, step_s=0.00005))
    _num_boundaries: int = 0
    _loop_began: float = 0.0

    # ------------------------------------------------------------------ at a boundary
    def saw_batch(self, step: int, batch: object) -> None:
        """Digest a batch as it is handed out; every one, or as many as 1 % of the time allows."""
        if not self._digests.takes(step):
            return
        began = time.perf_counter()
        if self._digest is None:
            self._digest = xxhash.xxh3_128()
        self._digest.update(self.batch_digest(batch))
        self._for_digests.spent_s += time.perf_counter() - began
        self._digests.tune(step, self._permits(self._for_digests))

    def forget_batch(self) -> None:
        """The step in hand does not count."""
        self._digest = None

    def step_finished(self, cursor: Cursor, values: Mapping[str, float]) -> None:
        """The boundary after step `cursor.step` was reached: its row, and the comparison of a resume."""
        row = ProgressRow(
            step=cursor.step,
            epoch=cursor.epoch,
            batch=cursor.batch,
            values_digest=_values_digest(values),
            loss=next(iter(values.values()), None),
            batch_digest=self._digest.digest() if self._digest is not None else None,
        )
        self._digest = None
        self._append(row)
        if not self.check.is_done:
            if (difference := self.check.compare(row)) is not None:
                self.say(difference.words())
                self.saver.event("resume-differs", step=difference.step, what=difference.what)
            if self.check.is_done:
                self.say(self.check.verdict())
                self.saver.event("resume-checked", verdict=self.check.verdict())

    def _append(self, row: ProgressRow) -> None:
        """progress.bin is only ever compared: when the disk refuses it, training goes on without."""
        if self._progress_failed:
            return
        try:
            self.progress.append(row)
        except StorageFailed as error:
            self._progress_failed = True
            self.say(f"{error.message}: steps from here on cannot be compared after a crash. {error.hint}")

    def boundary(
        self,
        cursor: Cursor,
        private: Mapping[str, object],
        *,
        epoch_ended: bool,
        finished: str | None = None,
        reasons: tuple[str, ...] = (),
    ) -> None:
        """Everything that is due at this boundary, in order: word from the agent, the record, the save."""
        now = time.monotonic()
        if self._num_boundaries == 0:
            self._loop_began = now
        self._num_boundaries += 1
        self.saver.poll()
        due = [*self.clocks.due(step=cursor.step, epoch_ended=epoch_ended, now=now), *reasons, *self._events()]
        if finished is not None:
            due.append("end")
        self.kept = None
        self._parameters = self.framework.parameter_versions()
        if not (due or self.wanted_names or self._permits(self._for_records)):
            return
        began = time.perf_counter()
        record = self.make_record(cursor, private)
        self._for_records.spent_s += time.perf_counter() - began
        self.kept = KeptRecord.of(record)
        if due or self.wanted_names:
            self.save(record, tuple(due), finished=finished)
        elif cursor.step > 0:  # before the first update the optimizer has no state
            self.saver.prepare(record.state)

    def make_record(self, cursor: Cursor, private: Mapping[str, object]) -> Record:
        state = self.framework.collect(private)
        return Record(
            cursor=cursor,
            state=state,
            versions=self.framework.versions(state),
            buffers=self.framework.written_by_forward(),
        )

    def has_updated(self) -> bool:
        """Whether an update was made since the boundary."""
        return self.framework.parameter_versions() != self._parameters

    def _has_changed(self, record: Record) -> bool:
        """Whether a tensor was written since the boundary, running statistics that were copied excepted."""
        if not record.state.is_watched:
            return True
        leaves = (*record.state.static, *record.state.dynamic)
        now = self.framework.versions(record.state)
        return any(
            was != is_now and leaf.name not in record.buffers
            for leaf, was, is_now in zip(leaves, record.versions, now, strict=True)
        )

    def save(
        self, record: Record, reasons: tuple[str, ...], *, finished: str | None = None, late: bool = False
    ) -> None:
        """Save a record. `late`: Forward may have run since, so copied statistics stand in for the live ones."""
        requests, self.saver.requests = self.saver.requests, []
        names = [*self.wanted_names, *(r.name for r in requests if r.name)]
        self.wanted_names = []
        self.stop_asked = self.stop_asked or any(r.what == "stop" for r in requests)
        step = record.cursor.step
        again = step == self.saved_step
        if again and not names and not requests and finished == self.saved_finished:
            return
        self.saved_revision = self.saved_revision + 1 if again else 0
        self.saved_step, self.saved_finished = step, finished
        segments = self.history.files()
        self.saver.save(
            SaveRequest(
                state=record.state,
                versions=record.versions,
                copies=record.buffers,
                is_late=late,
                cursor=record.cursor,
                loop={
                    "format": 1,
                    "cursor": {"step": step, "epoch": record.cursor.epoch, "batch": record.cursor.batch},
                    "settings": self.settings,
                    "metric_names": self.history.names(),
                    "tree": record.state.tree,
                },
                segments=segments,
                full_segments=frozenset(name for name in segments if self.history.is_full(name, step)),
                reasons=reasons,
                names=tuple(dict.fromkeys(name for name in names if name)),
                finished=finished,
                revision=self.saved_revision,
                wanted_by=tuple(r.id for r in requests),
            )
        )

    # ------------------------------------------------------------------ when the loop is left
    def save_boundary_if_whole(self, why: str) -> bool:
        """Save the boundary of the step in flight, if nothing shared was written since. Whether it is safe now."""
        record = None if self.kept is None else self.kept.whole()
        if record is None or self._has_changed(record):
            return False
        self.save(record, (why,), late=True)
        return True

    def wait_durable(self, *, is_at_boundary: bool = True) -> None:
        self.saver.drain(is_at_boundary=is_at_boundary)

    def act_on_signals(self) -> None:
        """After the save at a boundary: leave, if a signal or a command asked for it. Raises to leave."""
        signals = self.signals
        self.left_on_purpose = bool(signals.interrupts or signals.terminate or self.stop_asked)
        if signals.interrupts:
            self.wait_durable()
            self._say_saved("Ctrl-C")
            raise KeyboardInterrupt
        if signals.terminate:
            self.wait_durable()
            self._say_saved("SIGTERM")
            previous = signals.previous(signal.SIGTERM)
            if callable(previous):
                previous(signal.SIGTERM, None)
            raise SystemExit(143)
        if self.stop_asked:
            self.wait_durable()
            self._say_saved("stepfast stop")
            raise SystemExit(75)
        signals.save = False

    def _say_saved(self, who: str) -> None:
        durable = self.saver.last_durable
        where = (
            "nothing is durable" if durable is None else f"step {durable:,} is durable; the next start goes on there"
        )
        self.say(f"{who}: {where}")

    # ------------------------------------------------------------------ inside
    def _events(self) -> list[str]:
        """Events that ask for a save. A signal always saves before the process leaves, listened to or not."""
        reasons = []
        if self.signals.any() and (self.clocks.listens_to("signal") or not self.signals.save):
            reasons.append("signal")
        if self.saver.requests:
            reasons.append("request")
        if self.saver.has_lost_a_save:
            self.saver.has_lost_a_save = False
            self.saved_step = None
            reasons.append("the agent died")
        return reasons

    def _permits(self, allowance: Allowance) -> bool:
        return allowance.permits(elapsed_s=time.monotonic() - self._loop_began, num_steps=self._num_boundaries)

    @property
    def has_begun(self) -> bool:
        return self._num_boundaries > 0

    def final_words(self) -> str:
        """For the last line: what is durable, and how old it is."""
        if self.saver.last_failure is not None:
            return f"the last save failed: {self.saver.last_failure.message}"
        if self.saver.last_durable is None:
            return "nothing was saved"
        at = self.saver.last_durable_at
        ago = "" if at is None or time.monotonic() - at < 1.0 else f", {age(time.monotonic() - at)}"
        return f"step {self.saver.last_durable:,} is durable{ago}"

    def raise_if_failed(self) -> None:
        """At the very end a save that failed is an error: nothing will try again."""
        if self.saver.last_failure is not None:
            failure: StepfastError = self.saver.last_failure
            raise failure


def _values_digest(values: Mapping[str, float]) -> bytes:
    if not values:
        return NO_DIGEST
    digest = xxhash.xxh3_128()
    for name, value in values.items():
        digest.update(name.encode() + b"\0" + struct.pack("<d", value))
    return digest.digest()
