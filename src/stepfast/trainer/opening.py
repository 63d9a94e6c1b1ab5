"""From the arguments of a Run to a loop that is kept: the agent, the restore, the receipt, what is said at a start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepfast.core.protocols import BatchSource, Framework, Kit
from stepfast.core.words import Cursor
from stepfast.data.position import Position
from stepfast.policy import settings as settings_rules
from stepfast.policy.options import Options
from stepfast.policy.triggers import Clocks, with_save_steps
from stepfast.report.lines import count, counted
from stepfast.report.receipt import Receipt
from stepfast.restore.restore import Restored, load, restore
from stepfast.store import ledger
from stepfast.store.manifest import Manifest
from stepfast.store.progress import ProgressRow, ProgressWriter, read_progress
from stepfast.store.reading import CheckpointReader
from stepfast.store.storable import check_storable
from stepfast.trainer import facts
from stepfast.trainer.environment import Environment
from stepfast.trainer.history import History
from stepfast.trainer.keep import Keep
from stepfast.trainer.loop import COMPLETE
from stepfast.trainer.saver import Saver
from stepfast.trainer.selfcheck import SelfCheck, of_this_run
from stepfast.trainer.signals import Signals
from stepfast.trainer.speech import Speech


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a Run is made of."""

    options: Options
    environment: Environment
    kit: Kit
    framework: Framework
    source: BatchSource | None
    position: Position
    history: History
    state: dict[str, Any]
    speech: Speech
    seed: int | None
    save_steps: int | None

    def private_state(self) -> dict[str, object]:
        """What belongs to the train state besides the framework's part."""
        return {
            "state": self.state,
            "rng": self.kit.capture_rng(),
            "source": None if self.source is None else self.source.state(),
        }

    def set_user_state(self, user: Mapping[str, Any]) -> None:
        self.state.clear()
        self.state.update(user["state"])

    def settings(self) -> dict[str, object]:
        """As constructed, to be compared at the next start."""
        found: dict[str, object] = {"script": self.environment.script, "seed": self.seed}
        found |= self.framework.settings()
        found["accumulate"] = self.position.accumulate
        if self.source is not None:
            found |= {f"data.{key}": value for key, value in self.source.facts().items()}
        found |= {f"hyperparameters.{key}": value for key, value in self.options.hyperparameters.items()}
        return found

    def notes(self, path: Path) -> list[str]:
        """What a user should know at a start: of the file system, and of the data."""
        weak = facts.weak_file_system(path)
        return ([weak] if weak else []) + ([] if self.source is None else self.source.notes())

    def done_words(self) -> str:
        epochs = f"{counted(self.position.epoch, 'epoch')}, " if self.position.epoch else ""
        return epochs + counted(self.position.step, "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A run that is held, its state restored."""

    keep: Keep
    restored: Restored | None
    resume_at: Cursor | None
    receipt: Receipt | None
    last_logged_step: int
    """The newest step that any start has finished: what was logged up to it was given to `on_log` before."""
    finished: str | None
    """Why the run was ended before, if it was and is not lengthened now."""


def open_run(path: str, parts: Parts) -> Opened:
    """Start the agent, take the run, restore, tell.

    Raises:
        StepfastError: every refusal; the agent is gone then.
    """
    check_storable(parts.settings(), "settings")
    recorded = {
        "versions": facts.versions(),
        "hyperparameters": dict(parts.options.hyperparameters),
        "git_commit": facts.git_commit(),
        "determinism": parts.kit.determinism(),
    }
    saver = Saver.open(
        path=path,
        mode=parts.environment.resume,
        script=parts.environment.script,
        keep_newest=parts.options.keep.newest,
        framework=parts.framework,
        facts=recorded,
        say=parts.speech.say,
    )
    try:
        return _resume(path, parts, saver, recorded)
    except BaseException:
        saver.close("refused")
        raise


def restore_again(opened: Opened, framework: Framework) -> dict[str, Any]:
    """The same checkpoint once more; the user part of it."""
    assert opened.restored is not None
    reader = CheckpointReader(opened.keep.saver.run, opened.restored.manifest.step)
    user, _ = load(reader, opened.restored.loop, framework)
    return user


def _resume(path: str, parts: Parts, saver: Saver, recorded: Mapping[str, Any]) -> Opened:
    run, settings = saver.run, parts.settings()
    changes: list[settings_rules.Change] = []

    def check(_: Manifest, loop: dict[str, Any]) -> None:
        changes[:] = settings_rules.accept(
            settings_rules.compare(loop["settings"], settings),
            parts.environment.change,
            path=path,
            script=parts.environment.script,
        )

    restored = restore(run, parts.framework, check)
    manifest = None if restored is None else restored.manifest
    first_step = 0 if manifest is None else manifest.step
    rows = read_progress(run.progress_path, first_step=first_step)
    last_logged_step = max(rows, default=first_step - 1)
    if rows:
        rows = of_this_run(rows, ledger.read(run.ledger_path)[0])
    if restored is not None:
        _take_over(parts, restored, changes, settings)
        saver.restored(restored.manifest, restored.manifest_sha256)
    keep = Keep(
        framework=parts.framework,
        batch_digest=parts.kit.batch_digest,
        saver=saver,
        clocks=Clocks(trigger=parts.options.save or with_save_steps(parts.save_steps), started=time.monotonic()),
        signals=Signals(parts.speech.say),
        history=parts.history,
        progress=ProgressWriter(run.progress_path),
        check=SelfCheck(expected={} if changes else rows),
        settings=settings,
        say=parts.speech.say,
        saved_step=None if manifest is None else manifest.step,
        saved_finished=None if manifest is None else manifest.finished,
        saved_revision=0 if manifest is None else manifest.revision,
    )
    receipt = None
    if restored is not None:
        receipt = _receipt(parts, restored, saver, len(rows), recorded, changes)
        for line in receipt.lines():
            parts.speech.say(line)
        _tell_ledger(keep, receipt, changes)
    else:
        _say_fresh(parts, run.path, rows)
    position = parts.position
    return Opened(
        keep=keep,
        restored=restored,
        resume_at=None if restored is None else position.cursor(),
        receipt=receipt,
        last_logged_step=last_logged_step,
        finished=_finished(path, parts, manifest),
    )


def _take_over(
    parts: Parts, restored: Restored, changes: list[settings_rules.Change], settings: Mapping[str, object]
) -> None:
    manifest, position = restored.manifest, parts.position
    position.step, position.epoch, position.handed = manifest.step, manifest.epoch, manifest.batch
    parts.history.load(restored.loop["metric_names"], restored.segments)
    parts.set_user_state(restored.user)
    if changes:
        old = {change.key: change.was for change in changes}
        parts.framework.change([change.key for change in changes], old)
        seed = settings["seed"]
        if "seed" in old and isinstance(seed, int):
            parts.kit.seed(seed)
            restored.user["rng"] = parts.kit.capture_rng()
    parts.kit.restore_rng(restored.user["rng"])


def _receipt(
    parts: Parts,
    restored: Restored,
    saver: Saver,
    computed_again: int,
    recorded: Mapping[str, Any],
    changes: list[settings_rules.Change],
) -> Receipt:
    manifest, path = restored.manifest, saver.run.path
    differs = [f"{c.key} {settings_rules.show(c.was)} before, {settings_rules.show(c.now)} now" for c in changes]
    notes = parts.notes(path)
    if differs:
        notes.insert(0, f"from step {count(manifest.step)} on this is another run: settings were changed")
        if computed_again:
            notes.insert(1, "steps that are computed again are not compared: they are another run's now")
    differs += facts.differences(manifest.versions, recorded["versions"])
    differs += facts.differences(manifest.determinism, recorded["determinism"])
    return Receipt(
        path=str(path),
        source="disk",
        step=manifest.step,
        epoch=manifest.epoch,
        batch=manifest.batch,
        finished=manifest.finished,
        computed_again=computed_again,
        is_compared=not changes,
        attempt=saver.opened.attempt,
        read_s=restored.read_s,
        read_bytes=manifest.size_bytes,
        passed_over=restored.passed_over,
        differs=tuple(differs),
        notes=tuple(notes),
    )


def _tell_ledger(keep: Keep, receipt: Receipt, changes: list[settings_rules.Change]) -> None:
    keep.saver.event(
        "resumed",
        step=receipt.step,
        source=receipt.source,
        computed_again=receipt.computed_again,
        read_s=round(receipt.read_s, 4),
        passed_over=list(receipt.passed_over),
        changed=[change.key for change in changes],
        session=keep.progress.session,
    )


def _say_fresh(parts: Parts, path: Path, rows: Mapping[int, ProgressRow]) -> None:
    if rows:
        parts.speech.say(
            f"{path}: an earlier start saved nothing; beginning at step 0 again, "
            f"{counted(len(rows), 'step')} will be computed again and compared"
        )
        return
    parts.speech.started(path, parts.position.total_steps)
    for note in parts.notes(path):
        parts.speech.say(f"  {note}")


def _finished(path: str, parts: Parts, manifest: Manifest | None) -> str | None:
    """Why the run was ended, unless it never was or is lengthened now; says so."""
    position = parts.position
    finished = None if manifest is None else manifest.finished
    if finished is None or (finished == COMPLETE and not position.is_complete):
        return None
    why, more = f" ({finished.removeprefix('finish: ')})", ""
    if finished == COMPLETE:
        why, more = "", f" More: epochs={(position.epochs or position.epoch) + 1}."
    parts.speech.say(
        f"{path} is finished{why} ({parts.done_words()}): final state loaded, the loop is skipped."
        f"{more} Again: STEPFAST_RESUME=fresh"
    )
    return finished
