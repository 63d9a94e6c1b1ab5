"""What the loop tells, put to work: for a run that is kept, and for `Run(None)`, which keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stepfast.core.errors import StepfastError
from stepfast.core.protocols import BatchSource, Kit
from stepfast.core.words import Cursor
from stepfast.restore.restore import Restored
from stepfast.trainer.keep import Keep


class OpenedEpochs:
    """Opens epochs of a source: the first one of a resume in its middle, all others at their start."""

    def __init__(self, kit: Kit, resume_at: Cursor | None, source_state: Any, boundary_rng: Any) -> None:
        self._kit = kit
        self._at = resume_at
        self._state = source_state
        self._rng = boundary_rng

    def open(self, source: BatchSource, epoch: int) -> Iterator[Any]:
        if self._at is None:
            return source.begin(epoch)
        at, self._at = self._at, None
        # At an epoch's start the script's own lines at the head of the epoch have just run as they always do.
        rng = self._kit.capture_rng() if at.batch == 0 else self._rng
        return source.resume(epoch, at.batch, self._state, rng)


class Kept:
    """A run in a directory: `loop.Keeping` over a `Keep`."""

    def __init__(
        self,
        *,
        keep: Keep,
        epochs: OpenedEpochs,
        kit: Kit,
        source: BatchSource | None,
        restored: Restored | None,
        private_state: Callable[[], dict[str, object]],
        set_user_state: Callable[[dict[str, Any]], None],
        restore_again: Callable[[], dict[str, Any]],
        rng_at_run: Any,
        on_ended: Callable[[], None],
        on_step: Callable[[Cursor, Mapping[str, float]], None],
        end_words: Callable[[], str],
        was_finished: bool,
    ) -> None:
        self.keep = keep
        self._epochs = epochs
        self._kit = kit
        self._source = source
        self._restored = restored
        self._private_state = private_state
        self._set_user_state = set_user_state
        self._restore_again = restore_again
        self._rng_at_run = rng_at_run
        self._on_ended = on_ended
        self._on_step = on_step
        self._end_words = end_words
        self._how = "exception"
        self._was_finished = was_finished
        self._is_first = True

    def begun(self) -> None:
        self.keep.signals.install()

    def settle(self) -> None:
        """The script may have moved things between Run and its first batch; boundary i is what counts."""
        if self._restored is None:
            return
        framework = self.keep.framework
        leaves = [leaf for stored in self._restored.manifest.files for leaf in stored.leaves]
        user = framework.settle() if framework.holds(leaves) else self._restore_again()
        self._set_user_state(user)
        self._kit.restore_rng(self._restored.user["rng"])  # of the checkpoint, or of a seed that was changed
        if self._source is not None:
            self._source.restore(user["source"])

    def private_state(self) -> dict[str, object]:
        return self._private_state()

    def open_epoch(self, source: BatchSource, epoch: int) -> Iterator[Any]:
        return self._epochs.open(source, epoch)

    def saw_batch(self, step: int, batch: object) -> None:
        self.keep.saw_batch(step, batch)

    def step_finished(self, cursor: Cursor, values: Mapping[str, float]) -> None:
        self._on_step(cursor, values)
        self.keep.step_finished(cursor, values)

    def boundary(
        self, cursor: Cursor, private: Mapping[str, object], *, epoch_ended: bool, finished: str | None
    ) -> None:
        if self._is_first:
            self._is_first = False
            self._warn_of_moved_rng(private)
        self.keep.boundary(cursor, private, epoch_ended=epoch_ended, finished=finished)
        for note in () if self._source is None else self._source.new_notes():
            self.keep.say(note)
        self.keep.act_on_signals()

    def has_updated(self) -> bool:
        return self.keep.has_updated()

    def step_dropped(self) -> None:
        self.keep.forget_batch()

    def batches_left_out(self, epoch: int, count: int | None) -> None:
        many = "the rest" if count is None else f"{count:,} batches"
        self.keep.say(f"epoch {epoch + 1} ended by break: {many} left out")
        self.keep.saver.event("batches-left-out", epoch=epoch, batches=count)

    def paused(self, cursor: Cursor, private: Mapping[str, object], *, counted: bool) -> None:
        keep = self.keep
        self._how = "pause"
        if counted:
            keep.save(keep.make_record(cursor, private), ("pause",))
        else:
            keep.save_boundary_if_whole("pause")
        keep.wait_durable()
        durable = keep.saver.last_durable
        where = "paused before the first step" if durable is None else f"paused at step {durable:,} (break)"
        keep.say(f'{where}; the next start goes on. To end it for good: run.finish("early stop")')

    def failed(self) -> None:
        """An exception left the loop: the boundary of the step in flight if it is whole, else what was saved before."""
        keep = self.keep
        if keep.signals.interrupts > 1:
            self._how = "stopped now"
            return
        if keep.left_on_purpose:
            self._how = "stop"
            return
        try:
            if keep.clocks.listens_to("exception"):
                keep.save_boundary_if_whole("exception")
            keep.wait_durable(is_at_boundary=False)
        except StepfastError as error:
            keep.say(f"the save after the exception failed: {error.message}")
        keep.say(f"left by an exception; {keep.final_words()}")

    def completed(self) -> None:
        self._how = "complete"
        self.keep.wait_durable()
        self.keep.raise_if_failed()
        if not self._was_finished:
            self.keep.say(self._end_words())

    def ended(self) -> None:
        self.keep.signals.restore()
        self.keep.progress.close()
        self.keep.saver.close(self._how)
        self._on_ended()

    def _warn_of_moved_rng(self, private: Mapping[str, object]) -> None:
        if self._restored is None and self._kit.digest_rng(private["rng"]) != self._kit.digest_rng(self._rng_at_run):
            self.keep.say(
                "warning: a global random generator moved between Run and the first batch (a batch drawn before the "
                "loop, weights made after Run). Do that before Run, or inside the loop and keep it in run.state"
            )


class Bare:
    """`Run(None)`: the loop and nothing else."""

    def __init__(
        self, on_step: Callable[[Cursor, Mapping[str, float]], None], parameter_versions: Callable[[], list[object]]
    ) -> None:
        self._on_step = on_step
        self._parameter_versions = parameter_versions
        self._at_boundary: list[object] = []

    def begun(self) -> None: ...

    def settle(self) -> None: ...

    def private_state(self) -> dict[str, object]:
        return {}

    def open_epoch(self, source: BatchSource, epoch: int) -> Iterator[Any]:
        return source.begin(epoch)

    def saw_batch(self, step: int, batch: object) -> None: ...

    def step_finished(self, cursor: Cursor, values: Mapping[str, float]) -> None:
        self._on_step(cursor, values)

    def boundary(
        self, cursor: Cursor, private: Mapping[str, object], *, epoch_ended: bool, finished: str | None
    ) -> None:
        self._at_boundary = self._parameter_versions()

    def has_updated(self) -> bool:
        return self._parameter_versions() != self._at_boundary

    def step_dropped(self) -> None: ...

    def batches_left_out(self, epoch: int, count: int | None) -> None: ...

    def paused(self, cursor: Cursor, private: Mapping[str, object], *, counted: bool) -> None: ...

    def failed(self) -> None: ...

    def completed(self) -> None: ...

    def ended(self) -> None: ...
