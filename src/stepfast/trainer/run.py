"""`Run`: what a script holds in its hand. It wires the parts; each of them is in a file of its own."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from stepfast.core.errors import StepfastError, UsageError
from stepfast.core.protocols import BatchSource, Kit
from stepfast.core.words import Cursor
from stepfast.data.plain import IterableSource, length_of
from stepfast.data.position import Position
from stepfast.policy.options import Length, Options, check_arguments, is_path
from stepfast.report.receipt import Receipt
from stepfast.store.names import is_tag
from stepfast.trainer import environment, last_line
from stepfast.trainer.frameworks import kit_for
from stepfast.trainer.history import History, StepLog
from stepfast.trainer.keep import Keep
from stepfast.trainer.keeping import Bare, Kept, OpenedEpochs
from stepfast.trainer.loop import COMPLETE, Epoch, Loop
from stepfast.trainer.opening import Opened, Parts, open_run, restore_again
from stepfast.trainer.speech import Speech

_open_runs: dict[str, weakref.ref[Run]] = {}


class Run:
    """A training run that goes on where it stopped.

    Args:
        path: the run's directory; None for the bare loop that keeps nothing.
        model, optimizer, scheduler, scaler: one object each, or a dict of them.
        data: a loader, or any iterable of batches; None if the loop draws its own batches.
        extra: objects with `state_dict` and `load_state_dict`, and random generators, by name.
        epochs, steps: how long to train; one of them is needed.
        accumulate: batches in a step.
        seed: seed all global random generators with this number.
        save_steps: save every so many steps instead of every 600 s; 0 saves at epoch ends and events only.
        on_log: called with (values, step=…) once for each step of the run.
        progress: show a line with step, loss and speed on a terminal.
        resume: "auto", "require" (an error when there is nothing to resume) or "fresh".
        change: settings that may differ from those the run was started with.
        options: settings that few runs need.
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        model: object,
        optimizer: object = None,
        data: object = None,
        scheduler: object = None,
        scaler: object = None,
        extra: Mapping[str, object] | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        accumulate: int = 1,
        seed: int | None = None,
        save_steps: int | None = None,
        on_log: Callable[..., object] | None = None,
        progress: bool = False,
        resume: str = "auto",
        change: tuple[str, ...] = (),
        options: Options | None = None,
    ) -> None:
        last_line.install()
        check_arguments(save_steps=save_steps, seed=seed, on_log=on_log, change=change, options=options)
        if path is not None and not is_path(path):
            raise UsageError(f"path={path!r} is not the path of a directory", hint='Run("runs/mine", ...)')
        length = Length(epochs=epochs, steps=steps, accumulate=accumulate)
        surroundings = environment.read(resume, change)
        if path is not None and environment.world_size() > 1:
            raise UsageError(
                f"WORLD_SIZE={environment.world_size()}: this version keeps runs of one process",
                hint="start the script without a launcher; several ranks come with a later version",
            )
        options, kit = options or Options(), kit_for(model)
        if options.deterministic:
            kit.switch_deterministic_on()
        if seed is not None:
            kit.seed(seed)
        framework = kit.framework(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, extra=extra)
        source = None if data is None else kit.source(data) or _plain_source(kit, data)
        if source is None and steps is None:
            raise UsageError("steps= is needed when data=None", hint="say how long to train: steps=10_000")
        if accumulate > 1 and (source is None or source.length is None):
            raise UsageError(
                "accumulate= needs data with a length: the last window of an epoch may be shorter",
                hint="collect the window by hand: if i % 8 == 7: optimizer.step()",
            )
        self.path = None if path is None or surroundings.off else str(path)
        self.id: str | None = None
        self.state: dict[str, Any] = {}
        """Part of the train state: what else the loop carries from step to step."""
        self.history = History()
        self.receipt: Receipt | None = None
        self._position = Position(
            epoch_length=None if source is None else source.length,
            epochs=epochs if source is not None else None,
            steps=steps,
            accumulate=length.accumulate,
        )
        self._parts = Parts(
            options=options,
            environment=surroundings,
            kit=kit,
            framework=framework,
            source=source,
            position=self._position,
            history=self.history,
            state=self.state,
            speech=Speech(self.path or "", show_progress=progress),
            seed=seed,
            save_steps=save_steps,
        )
        self._step_log = StepLog(kit.scalar)
        self._on_log = on_log
        self._last_logged_step = -1
        self._closed = False
        self._keep: Keep | None = None
        self._dropped: weakref.finalize[Any, Run] | None = None
        opened = None if self.path is None else self._open(self.path)
        self._loop = Loop(
            position=self._position,
            source=source,
            keeping=Bare(self._step_done, framework.parameter_versions) if opened is None else self._kept(opened),
            history=self.history,
            step_log=self._step_log,
            resumed=opened is not None and opened.restored is not None,
        )
        if opened is not None and opened.finished is not None and opened.finished != COMPLETE:
            self._loop.finishing = opened.finished.removeprefix("finish: ")

    # ------------------------------------------------------------------ the loop
    def epochs(self) -> Iterator[Epoch]:
        """The epochs still to do; a resume begins inside the right one."""
        return self._loop.epochs()

    def __iter__(self) -> Iterator[Any]:
        """All batches still to do, across epochs; without data, the step numbers."""
        return self._loop.batches()

    def __len__(self) -> int:
        """Steps of the whole run."""
        if (total := self.total_steps) is None:
            raise TypeError("the data has no length and steps= was not given: the number of steps is not known")
        return total

    # ------------------------------------------------------------------ where it stands
    @property
    def step(self) -> int:
        """The step the loop is in, from 0; after the loop, how many steps are in the weights."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """The epoch the loop is in, from 0."""
        return self._position.epoch

    @property
    def batch_index(self) -> int:
        """The index of the batch in hand within its epoch."""
        return max(self._position.handed - 1, 0)

    @property
    def window_size(self) -> int:
        """Batches in the window of the batch in hand."""
        return self._position.window_size

    @property
    def window_end(self) -> bool:
        """Whether the batch in hand is the last of its window, so that an update is due."""
        return self._position.window_end

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run, None where only the data's end tells."""
        return self._position.total_steps

    # ------------------------------------------------------------------ what the loop says
    def log(self, values: Mapping[str, object] | None = None, /, **more: object) -> None:
        """Log numbers of the step in hand. A name logged several times in a step counts with its mean."""
        self._step_log.log({**(values or {}), **more})

    def save(self, name: str | None = None) -> None:
        """Save at the next boundary: when the step in hand, its tail included, is done. `name` tags it for good."""
        if self._closed:
            raise UsageError("the loop has ended; nothing more can be saved", hint="call run.save() inside the loop")
        if name is not None and not is_tag(name):
            raise UsageError(
                f"run.save({name!r}): not a name for a checkpoint",
                hint="letters, digits, . _ - (not only digits, not `latest`): run.save('best')",
            )
        if self._keep is not None:
            self._keep.wanted_names.append(name or "")

    def finish(self, reason: str) -> None:
        """End the run for good at the next boundary."""
        self._loop.finishing = reason

    def close(self) -> None:
        """End it here. Steps since the last save are computed again by the next start."""
        if self._closed:
            return
        self._closed = True
        self._loop.close()
        if self._dropped is not None:
            self._dropped.detach()
        if self._keep is not None:
            _let_go(self._keep, "close")
        if self._parts.source is not None:
            self._parts.source.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ inside
    def _open(self, path: str) -> Opened:
        _close_earlier(path)
        opened = open_run(path, self._parts)
        self.id, self.receipt, self._keep = opened.keep.saver.opened.run_id, opened.receipt, opened.keep
        self._last_logged_step = opened.last_logged_step
        # Left without its loop and without close(), at the end of the process too: the agent must not be left waiting.
        self._dropped = weakref.finalize(self, _let_go, opened.keep, "dropped")
        _open_runs[_key(path)] = weakref.ref(self)
        return opened

    def _kept(self, opened: Opened) -> Kept:
        parts, user = self._parts, {} if opened.restored is None else opened.restored.user
        return Kept(
            keep=opened.keep,
            kit=parts.kit,
            epochs=OpenedEpochs(parts.kit, opened.resume_at, user.get("source"), user.get("rng")),
            source=parts.source,
            restored=opened.restored,
            private_state=parts.private_state,
            set_user_state=parts.set_user_state,
            restore_again=lambda: restore_again(opened, parts.framework),
            rng_at_run=parts.kit.capture_rng(),
            on_ended=self._ended,
            on_step=self._step_done,
            end_words=self._end_words,
            was_finished=opened.finished is not None,
        )

    def _step_done(self, cursor: Cursor, values: Mapping[str, float]) -> None:
        if self._on_log is not None and values and cursor.step > self._last_logged_step:
            self._on_log(dict(values), step=cursor.step)
        durable = None if self._keep is None else (self._keep.saver.last_durable, self._keep.saver.last_durable_at)
        self._parts.speech.progress(self._position, values, durable)

    def _end_words(self) -> str:
        why = f" ({self._loop.finishing})" if self._loop.finishing else ""
        return f"{self.path} is finished{why}: {self._parts.done_words()}; the final state is durable"

    def _ended(self) -> None:
        self._closed = True
        if self._dropped is not None:
            self._dropped.detach()
        self._parts.speech.end_progress()


def _plain_source(kit: Kit, data: Any) -> BatchSource:
    return IterableSource(data, rng=_Rng(kit), generators=kit.generators(data), length=length_of(data))


class _Rng:
    """A kit's global generators under the names that a plain source uses."""

    def __init__(self, kit: Kit) -> None:
        self.capture, self.restore = kit.capture_rng, kit.restore_rng


def _key(path: str) -> str:
    return str(Path(path).resolve())


def _close_earlier(path: str) -> None:
    """A notebook cell that is run again: the earlier Run on this path in this process gives way."""
    reference = _open_runs.pop(_key(path), None)
    if reference is not None and (earlier := reference()) is not None:
        earlier.close()


def _let_go(keep: Keep, why: str) -> None:
    if os.getpid() == keep.signals.pid:  # not in a child that the script has forked
        keep.signals.restore()
        keep.progress.close()
        if why == "dropped" and keep.has_begun:
            with contextlib.suppress(StepfastError):
                keep.wait_durable(is_at_boundary=False)
            keep.say(f"left without an end to its loop; {keep.final_words()}; the next start goes on from there")
        keep.saver.close(why)
