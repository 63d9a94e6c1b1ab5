"""The loop that the user's script walks: epochs, batches, boundaries between steps, and every way to leave.

A boundary is reached when a new step's first batch is asked for, before it is fetched; the end of an epoch's batches
is none, because the epoch's tail belongs to its last step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from stepfast.core.errors import Damaged, UsageError
from stepfast.core.points import point
from stepfast.core.protocols import BatchSource
from stepfast.core.words import Cursor
from stepfast.data.position import Position
from stepfast.trainer.history import History, StepLog
from stepfast.trainer.leaving import Consumer, consumer, left_by_break

_END = object()
COMPLETE = "complete"


class Keeping(Protocol):
    """What the loop tells at its boundaries; `Run(None)` has one that keeps nothing."""

    def begun(self) -> None: ...

    def settle(self) -> None:
        """A resume: bring the state back to the boundary once more, the script may have moved it since `Run`."""

    def private_state(self) -> dict[str, object]: ...

    def open_epoch(self, source: BatchSource, epoch: int) -> Iterator[Any]: ...

    def saw_batch(self, step: int, batch: object) -> None: ...

    def step_finished(self, cursor: Cursor, values: Mapping[str, float]) -> None: ...

    def boundary(
        self, cursor: Cursor, private: Mapping[str, object], *, epoch_ended: bool, finished: str | None
    ) -> None: ...

    def has_updated(self) -> bool: ...

    def step_dropped(self) -> None: ...

    def batches_left_out(self, epoch: int, count: int | None) -> None: ...

    def paused(self, cursor: Cursor, private: Mapping[str, object], *, counted: bool) -> None: ...

    def failed(self) -> None: ...

    def completed(self) -> None: ...

    def ended(self) -> None: ...


class Loop:
    """One pass of the script over the batches still to do."""

    def __init__(
        self,
        *,
        position: Position,
        source: BatchSource | None,
        keeping: Keeping,
        history: History,
        step_log: StepLog,
        resumed: bool,
    ) -> None:
        self.position = position
        self.finishing: str | None = None
        self._source = source
        self._keeping = keeping
        self._history = history
        self._step_log = step_log
        self._is_resumed = resumed
        self._has_begun = False
        self._pid = os.getpid()
        self._was_left = False
        self._is_running = False
        self._is_closed = False
        self._walked: int | None = None
        self._broken = False
        self._exhausted = False

    def close(self) -> None:
        """Nothing is kept any more; a script that goes on with the loop is told so."""
        self._is_closed = True

    # ------------------------------------------------------------------ what a script iterates
    def epochs(self) -> Iterator[Epoch]:
        if self._source is None:
            raise UsageError(
                "epochs() needs data=; this run has data=None", hint="iterate the run: for step in run: ..."
            )
        return self._guarded(self._epochs())

    def batches(self) -> Iterator[Any]:
        return self._guarded(self._all_batches() if self._source is not None else self._steps())

    def epoch_batches(self, epoch: int) -> Iterator[Any]:
        """The batches of the epoch in hand, for `for batch in epoch`."""
        return self._leaving_inner(self._walk_once(epoch, self._epoch_batches()))

    def numbered_batches(self, epoch: int) -> Iterator[tuple[int, Any]]:
        """The same with each batch's index in the epoch."""
        numbered = ((self.position.handed - 1, batch) for batch in self._epoch_batches())
        return self._leaving_inner(self._walk_once(epoch, numbered))

    def _guarded(self, inner: Iterator[Any]) -> Iterator[Any]:
        """Begin, walk, and note how it was left."""
        if self._is_running or self._was_left:
            raise UsageError(
                "the loop of this Run was begun before",
                hint="one Run has one loop: build the Run again to go on where it stopped",
            )
        self._is_running = True
        self._keeping.begun()
        asked: Consumer = ()
        try:
            for item in inner:
                asked = consumer(sys._getframe().f_back)
                yield item
        except GeneratorExit:
            if self._is_ours():
                self._left(left_by_break(sys._getframe().f_back, asked))
            raise
        except BaseException:  # from the loader, or from a boundary: a signal, state that cannot be stored
            if self._is_ours():
                self._keeping.failed()
            raise
        else:
            self._keeping.completed()
        finally:
            self._is_running, self._was_left = False, True
            if self._is_ours():
                self._keeping.ended()

    def _is_ours(self) -> bool:
        """Not a child that a script has forked inside the loop, nor an interpreter that is going down."""
        return os.getpid() == self._pid and not sys.is_finalizing() and not self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError(
                "the loop goes on after run.close()",
                hint="leave the loop first (break, return), or end the run for good: run.finish(reason)",
            )

    def _walk_once(self, epoch: int, inner: Iterator[Any]) -> Iterator[Any]:
        if epoch != self.position.epoch or self._walked == epoch or not self._is_running:
            raise UsageError(
                f"the batches of epoch {epoch + 1} were walked through before, or its turn is over",
                hint="one `for batch in epoch` for each epoch of `for epoch in run.epochs()`",
            )
        self._walked = epoch
        yield from inner

    def _leaving_inner(self, inner: Iterator[Any]) -> Iterator[Any]:
        asked: Consumer = ()
        try:
            for item in inner:
                asked = consumer(sys._getframe().f_back)
                yield item
        except GeneratorExit:
            self._broken = left_by_break(sys._getframe().f_back, asked)
            if self._broken and self.position.in_step and not self._keeping.has_updated():
                self._step_log.take()  # the step will not count, so neither does what it logged; the tail's will
            raise

    # ------------------------------------------------------------------ walks
    def _epochs(self) -> Iterator[Epoch]:
        position = self.position
        if position.handed == 0 or self._is_over():  # else the lines at the head of the epoch have yet to run
            self._begin()
        while not self._is_over():
            self._broken = self._exhausted = False
            yield Epoch(self, position.epoch)
            self._after_epoch()

    def _all_batches(self) -> Iterator[Any]:
        self._begin()
        while not self._is_over():
            self._exhausted = False
            yield from self._epoch_batches()
            self._after_epoch()

    def _steps(self) -> Iterator[int]:
        """No data: the step number is all there is."""
        position = self.position
        self._begin()
        while not self._is_over():
            position.hand()
            yield position.step
            self._check_open()
            self._finish_step()
            self._boundary(self._keeping.private_state(), epoch_ended=False, finished=self._end_reason())

    def _epoch_batches(self) -> Iterator[Any]:
        position, keeping = self.position, self._keeping
        assert self._source is not None
        self._check_open()
        self._begin()
        if position.is_complete:
            return
        fetch = keeping.open_epoch(self._source, position.epoch)
        while not position.epoch_exhausted:
            private: dict[str, object] | None = None
            if position.in_step and position.at_window_start:
                if position.is_last_step or self.finishing is not None:
                    return
                private = keeping.private_state()
                if position.epoch_length is not None:
                    self._step_boundary(private)
                    private = None
            point("loop:before-fetch")
            batch = next(fetch, _END)
            if batch is _END:
                if position.handed == 0 and position.epoch_length is None:
                    raise UsageError(
                        f"the data gave no batch at all in epoch {position.epoch + 1}",
                        hint="each iter(data) must begin anew; an iterator that is used up gives nothing",
                    )
                if position.epoch_length is None:
                    self._exhausted = True
                    return
                raise _wrong_length(f"ended after {position.handed:,} batches", position.epoch_length)
            if private is not None:
                self._step_boundary(private)
            position.hand()
            keeping.saw_batch(position.step, batch)
            yield batch
            self._check_open()
        # The plain loop asks once more, and a sampler may draw then: before the tail, as without Stepfast.
        if next(fetch, _END) is not _END:
            raise _wrong_length("goes on", position.epoch_length)
        self._exhausted = True

    # ------------------------------------------------------------------ boundaries
    def _begin(self) -> None:
        """The first boundary of this start, once: state settled, then the record."""
        if self._has_begun:
            return
        self._has_begun = True
        if self._is_resumed:
            self._keeping.settle()
            self._step_log.take()  # logged before the boundary that is now in place: it is in the history already
        if not self._is_over():
            self._boundary(self._keeping.private_state(), epoch_ended=False, finished=None)

    def _step_boundary(self, private: Mapping[str, object]) -> None:
        self._finish_step()
        self._boundary(private, epoch_ended=False, finished=None)

    def _finish_step(self) -> None:
        position = self.position
        values = self._step_log.take()
        self._history.add(position.step, position.epoch, values)
        cursor = Cursor(step=position.step, epoch=position.epoch, batch=max(position.handed - 1, 0))
        self._keeping.step_finished(cursor, values)
        position.finish_step()

    def _drop_step(self) -> None:
        """A step that was left before its update: its batches are not in the weights."""
        position = self.position
        position.in_step = False
        position.handed -= (position.handed - 1) % position.accumulate + 1
        self._keeping.step_dropped()

    def _after_epoch(self) -> None:
        """The next epoch was asked for: the tail has run."""
        position = self.position
        self._check_open()
        self._begin()  # also where nobody asked for a batch of the epoch that a resume fell into
        if position.in_step:
            if self._broken and not self._keeping.has_updated():
                self._drop_step()
                values = self._step_log.take()
                if position.step > 0:  # the tail's values belong to the last step that counts
                    self._history.add(position.step - 1, position.epoch, values)
            else:
                self._finish_step()
        ends_here = self._is_over() and not self._exhausted and not self._broken
        if not self._exhausted and not ends_here:
            known = position.epoch_length
            self._keeping.batches_left_out(position.epoch, None if known is None else known - position.handed)
        if not ends_here:
            position.next_epoch()
        self._boundary(self._keeping.private_state(), epoch_ended=not ends_here, finished=self._end_reason())

    def _boundary(self, private: Mapping[str, object], *, epoch_ended: bool, finished: str | None) -> None:
        self._keeping.boundary(self.position.cursor(), private, epoch_ended=epoch_ended, finished=finished)
        point("loop:boundary")

    # ------------------------------------------------------------------ ends
    def _is_over(self) -> bool:
        return self.position.is_complete or self.finishing is not None

    def _end_reason(self) -> str | None:
        if self.finishing is not None:
            return f"finish: {self.finishing}"
        return COMPLETE if self.position.is_complete else None

    def _left(self, by_break: bool) -> None:
        """The outer loop was left before its end."""
        position = self.position
        if not by_break:
            self._keeping.failed()
            return
        counted = position.in_step and self._keeping.has_updated()
        if counted:
            self._finish_step()
            if position.epoch_exhausted:
                position.next_epoch()
        elif position.in_step:
            self._drop_step()
        self._keeping.paused(position.cursor(), self._keeping.private_state(), counted=counted)


def _wrong_length(what: str, length: int | None) -> Damaged:
    return Damaged(
        f"the data {what}; its length says {length} batches an epoch",
        hint="give the loader a __len__ that is true, or none",
    )


class Epoch:
    """The batches of one epoch that are still to do, in their order."""

    def __init__(self, loop: Loop, number: int) -> None:
        self._loop = loop
        self.number = number

    def __iter__(self) -> Iterator[Any]:
        return self._loop.epoch_batches(self.number)

    def __len__(self) -> int:
        """Batches of the whole epoch, also after a resume."""
        length = self._loop.position.epoch_length
        if length is None:
            raise TypeError("the data has no length: only its end tells how many batches an epoch has")
        return length

    def enumerate(self) -> Iterator[tuple[int, Any]]:
        """Batches with their index in the epoch, counted as in the undisturbed run."""
        return self._loop.numbered_batches(self.number)

    def mean(self, name: str) -> float:
        """The mean of what was logged under `name` in this epoch, before a crash included."""
        return self._loop._history.mean(name, self.number)
