"""`Run`: what a script holds in its hand. It wires the parts; each of them is in a file of its own."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from stepfast.core.errors import UsageError
from stepfast.core.protocols import BatchSource, Kit
from stepfast.core.words import Cursor
from stepfast.data.plain import IterableSource, length_of
from stepfast.data.position import Position
from stepfast.policy import settings as settings_rules
from stepfast.policy.options import Length, Options, check_arguments, is_path
from stepfast.policy.triggers import Clocks, with_save_steps
from stepfast.report.lines import count, counted
from stepfast.report.receipt import Receipt
from stepfast.restore.restore import Restored, load, restore
from stepfast.store import ledger
from stepfast.store.manifest import Manifest
from stepfast.store.names import is_tag
from stepfast.store.progress import ProgressWriter, read_progress
from stepfast.store.reading import CheckpointReader
from stepfast.trainer import environment, facts, last_line
from stepfast.trainer.frameworks import kit_for
from stepfast.trainer.history import History, StepLog
from stepfast.trainer.keep import Keep
from stepfast.trainer.keeping import Bare, Kept, OpenedEpochs
from stepfast.trainer.loop import COMPLETE, Epoch, Keeping, Loop
from stepfast.trainer.saver import Saver
from stepfast.trainer.selfcheck import SelfCheck, of_this_run
from stepfast.trainer.signals import Signals
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
        self._options = options or Options()
        length = Length(epochs=epochs, steps=steps, accumulate=accumulate)
        self._environment = environment.read(resume, change)
        if path is not None and environment.world_size() > 1:
            raise UsageError(
                f"WORLD_SIZE={environment.world_size()}: this version keeps runs of one process",
                hint="start the script without a launcher; several ranks come with a later version",
            )
        self._kit = kit_for(model)
        if self._options.deterministic:
            self._kit.switch_deterministic_on()
        if seed is not None:
            self._kit.seed(seed)
        self._framework = self._kit.framework(
            model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, extra=extra
        )
        self._source = None if data is None else self._kit.source(data) or _plain_source(self._kit, data)
        if self._source is None and steps is None:
            raise UsageError("steps= is needed when data=None", hint="say how long to train: steps=10_000")
        if accumulate > 1 and (self._source is None or self._source.length is None):
            raise UsageError(
                "accumulate= needs data with a length: the last window of an epoch may be shorter",
                hint="collect the window by hand: if i % 8 == 7: optimizer.step()",
            )
        self.state: dict[str, Any] = {}
        """Part of the train state: what else the loop carries from step to step."""
        self.history = History()
        self.receipt: Receipt | None = None
        self.path = None if path is None or self._environment.off else str(path)
        self.id: str | None = None
        self._step_log = StepLog(self._kit.scalar)
        self._speech = Speech(self.path or "", show_progress=progress)
        self._on_log = on_log
        self._logged_before = -1
        self._finish_reason: str | None = None
        self._closed = False
        self._position = Position(
            epoch_length=None if self._source is None else self._source.length,
            epochs=epochs if self._source is not None else None,
            steps=steps,
            accumulate=length.accumulate,
        )
        self._keep: Keep | None = None
        self._dropped: weakref.finalize[Any, Run] | None = None
        keeping: Keeping = Bare(self._step_done, self._framework.parameter_versions)
        restored: Restored | None = None
        if self.path is not None:
            _close_earlier(self.path)
            restored, keeping = self._open(self.path, seed, save_steps)
            _open_runs[_key(self.path)] = weakref.ref(self)
        self._loop = Loop(
            position=self._position,
            source=self._source,
            keeping=keeping,
            history=self.history,
            step_log=self._step_log,
            resumed=restored is not None,
        )
        if self._finish_reason is not None:
            self._loop.finishing = self._finish_reason

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
        if self._source is not None:
            self._source.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ opening
    def _open(self, path: str, seed: int | None, save_steps: int | None) -> tuple[Restored | None, Keeping]:
        self._settings = self._all_settings(seed)
        recorded = {
            "versions": facts.versions(),
            "hyperparameters": dict(self._options.hyperparameters),
            "git_commit": facts.git_commit(),
            "determinism": self._kit.determinism(),
        }
        saver = Saver.open(
            path=path,
            mode=self._environment.resume,
            script=self._environment.script,
            keep_newest=self._options.keep.newest,
            framework=self._framework,
            facts=recorded,
            say=self._speech.say,
        )
        self.id = saver.opened.run_id
        try:
            return self._resume(path, saver, recorded, save_steps)
        except BaseException:
            if self._keep is not None:
                self._keep.progress.close()
            if self._dropped is not None:
                self._dropped.detach()
            saver.close("refused")
            raise

    def _resume(
        self, path: str, saver: Saver, recorded: Mapping[str, Any], save_steps: int | None
    ) -> tuple[Restored | None, Keeping]:
        run = saver.run
        changes: list[settings_rules.Change] = []

        def check(_: Manifest, loop: dict[str, Any]) -> None:
            changes[:] = settings_rules.accept(
                settings_rules.compare(loop["settings"], self._settings),
                self._environment.change,
                path=path,
                script=self._environment.script,
            )

        restored = restore(run, self._framework, check)
        first_step = 0 if restored is None else restored.manifest.step
        rows = read_progress(run.progress_path, first_step=first_step)
        self._logged_before = max(rows, default=first_step - 1)
        if rows:
            rows = of_this_run(rows, ledger.read(run.ledger_path)[0])
        if restored is None and not rows:
            self._speech.started(run.path, self.total_steps)
            for note in self._notes(run.path):
                self._speech.say(f"  {note}")
        user: dict[str, Any] = {}
        if restored is not None:
            user = restored.user
            self._take_over(restored, changes)
        signals = Signals(self._speech.say)
        was_finished = False
        keep = Keep(
            framework=self._framework,
            batch_digest=self._kit.batch_digest,
            saver=saver,
            clocks=Clocks(trigger=self._options.save or with_save_steps(save_steps), started=time.monotonic()),
            signals=signals,
            history=self.history,
            progress=ProgressWriter(run.progress_path),
            check=SelfCheck(expected={} if changes else rows),
            settings=self._settings,
            say=self._speech.say,
            saved_step=None if restored is None else restored.manifest.step,
            saved_finished=None if restored is None else restored.manifest.finished,
            saved_revision=0 if restored is None else restored.manifest.revision,
        )
        self._keep = keep
        # Left without its loop and without close(), at the end of the process too: the agent must not be left waiting.
        self._dropped = weakref.finalize(self, _let_go, keep, "dropped")
        if restored is not None:
            saver.restored(restored.manifest, restored.manifest_sha256)
            self._give_receipt(restored, saver, rows, recorded, changes)
            was_finished = self._is_finished(restored.manifest.finished)
        elif rows:
            self._speech.say(
                f"{run.path}: an earlier start saved nothing; beginning at step 0 again, "
                f"{counted(len(rows), 'step')} will be computed again and compared"
            )
        at = None
        if restored is not None:
            at = Cursor(step=self.step, epoch=self.epoch, batch=self._position.handed)
        return restored, Kept(
            keep=keep,
            kit=self._kit,
            epochs=OpenedEpochs(self._kit, at, user.get("source"), user.get("rng")),
            source=self._source,
            restored=restored,
            private_state=self._private_state,
            set_user_state=self._set_user_state,
            restore_again=lambda: self._restore_again(restored),
            path=path,
            rng_at_run=self._kit.capture_rng(),
            on_ended=self._ended,
            on_step=self._step_done,
            end_words=self._end_words,
            was_finished=was_finished,
        )

    def _take_over(self, restored: Restored, changes: list[settings_rules.Change]) -> None:
        manifest, position = restored.manifest, self._position
        position.step, position.epoch, position.handed = manifest.step, manifest.epoch, manifest.batch
        self.history.load(restored.loop["metric_names"], restored.segments)
        self._set_user_state(restored.user)
        if changes:
            old = {change.key: change.was for change in changes}
            self._framework.change([change.key for change in changes], old)
            seed = self._settings["seed"]
            if "seed" in old and isinstance(seed, int):
                self._kit.seed(seed)
                restored.user["rng"] = self._kit.capture_rng()
        self._kit.restore_rng(restored.user["rng"])

    def _restore_again(self, restored: Restored | None) -> dict[str, Any]:
        assert restored is not None
        assert self._keep is not None
        reader = CheckpointReader(self._keep.saver.run, restored.manifest.step)
        user, _ = load(reader, restored.loop, self._framework)
        return user

    def _give_receipt(
        self,
        restored: Restored,
        saver: Saver,
        rows: Mapping[int, object],
        recorded: Mapping[str, Any],
        changes: list[settings_rules.Change],
    ) -> None:
        assert self._keep is not None
        manifest = restored.manifest
        differs = [f"{c.key} {settings_rules.show(c.was)} before, {settings_rules.show(c.now)} now" for c in changes]
        notes = self._notes(saver.run.path)
        if differs:
            notes.insert(0, f"from step {count(manifest.step)} on this is another run: settings were changed")
            if rows:
                notes.insert(1, "steps that are computed again are not compared: they are another run's now")
        differs += facts.differences(manifest.versions, recorded["versions"])
        differs += facts.differences(manifest.determinism, recorded["determinism"])
        self.receipt = Receipt(
            path=str(saver.run.path),
            source="disk",
            step=manifest.step,
            epoch=manifest.epoch,
            batch=manifest.batch,
            finished=manifest.finished,
            computed_again=len(rows),
            is_compared=not changes,
            attempt=saver.opened.attempt,
            read_s=restored.read_s,
            read_bytes=manifest.size_bytes,
            passed_over=restored.passed_over,
            differs=tuple(differs),
            notes=tuple(notes),
        )
        for line in self.receipt.lines():
            self._speech.say(line)
        saver.event(
            "resumed",
            step=manifest.step,
            source="disk",
            computed_again=len(rows),
            read_s=round(restored.read_s, 4),
            passed_over=list(restored.passed_over),
            changed=[c.key for c in changes],
            session=self._keep.progress.session,
        )

    def _is_finished(self, finished: str | None) -> bool:
        """Whether the run was ended before and is not lengthened now; says so."""
        position = self._position
        if finished is None or (finished == COMPLETE and not position.is_complete):
            return False  # or epochs= or steps= was raised: the run goes on
        if finished != COMPLETE:
            self._finish_reason = finished.removeprefix("finish: ")
        done = self._done_words()
        more = "" if finished != COMPLETE else f" More: epochs={(position.epochs or position.epoch) + 1}."
        why = "" if finished == COMPLETE else f" ({self._finish_reason})"
        self._speech.say(
            f"{self.path} is finished{why} ({done}): final state loaded, the loop is skipped."
            f"{more} Again: STEPFAST_RESUME=fresh"
        )
        return True

    # ------------------------------------------------------------------ inside
    def _all_settings(self, seed: int | None) -> dict[str, object]:
        found: dict[str, object] = {"script": self._environment.script, "seed": seed}
        found |= self._framework.settings()
        found["accumulate"] = self._position.accumulate
        if self._source is not None:
            found |= {f"data.{key}": value for key, value in self._source.facts().items()}
        found |= {f"hyperparameters.{key}": value for key, value in self._options.hyperparameters.items()}
        return found

    def _private_state(self) -> dict[str, object]:
        return {
            "state": self.state,
            "rng": self._kit.capture_rng(),
            "source": None if self._source is None else self._source.state(),
        }

    def _notes(self, path: Path) -> list[str]:
        """What a user should know at a start: of the file system, and of the data."""
        weak = facts.weak_file_system(path)
        return ([weak] if weak else []) + ([] if self._source is None else self._source.notes())

    def _set_user_state(self, user: Mapping[str, Any]) -> None:
        self.state.clear()
        self.state.update(user["state"])

    def _step_done(self, cursor: Cursor, values: Mapping[str, float]) -> None:
        if self._on_log is not None and values and cursor.step > self._logged_before:
            self._on_log(dict(values), step=cursor.step)
        durable = None if self._keep is None else (self._keep.saver.last_durable, self._keep.saver.last_durable_at)
        self._speech.progress(self._position, values, durable)

    def _end_words(self) -> str:
        why = f" ({self._loop.finishing})" if self._loop.finishing else ""
        return f"{self.path} is finished{why}: {self._done_words()}; the final state is durable"

    def _done_words(self) -> str:
        position = self._position
        epochs = f"{counted(position.epoch, 'epoch')}, " if position.epoch else ""
        return epochs + counted(position.step, "step")

    def _ended(self) -> None:
        self._closed = True
        if self._dropped is not None:
            self._dropped.detach()
        self._speech.end_progress()


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
        keep.saver.close(why)
