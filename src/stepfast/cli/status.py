"""`stepfast status`: what a run does now, what is durable, and what a crash now would cost."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stepfast.cli.asking import NobodyTrains, standing_of
from stepfast.cli.output import put, put_json
from stepfast.cli.places import Holder, Row, age_of, holder_of, local_time, open_run, rows_of, shown_place
from stepfast.core.errors import AgentLost, NotARun
from stepfast.report import lines
from stepfast.report.events import words
from stepfast.report.plain import escaped
from stepfast.store import ledger
from stepfast.store.progress import ProgressRow, iter_progress
from stepfast.store.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that `status` says, before it is said."""

    run: RunDirectory
    holder: Holder | None
    waiting: int | None
    """Saves that are not yet durable; None when the agent cannot be asked."""
    durable: Row | None
    damaged: tuple[int, ...]
    last: ProgressRow | None
    """The step that finished last, in the order of time: after a resume it may be below one seen before."""
    last_age_s: float | None
    seconds_a_step: float | None
    last_event: dict[str, Any] | None

    @property
    def finished_steps(self) -> int:
        """Steps that have finished, as the newest session counts them."""
        durable = 0 if self.durable is None else self.durable.step
        return durable if self.last is None else max(durable, self.last.step + 1)

    @property
    def cost_steps(self) -> int:
        """Finished steps that a crash now would have computed again."""
        return self.finished_steps - (0 if self.durable is None else self.durable.step)

    @property
    def end(self) -> str | None:
        manifest = None if self.durable is None else self.durable.manifest
        return None if manifest is None else manifest.finished


def status(place: str, *, as_json: bool) -> int:
    """Say it for people, or as JSON."""
    facts = _look(open_run(place))
    if as_json:
        put_json(_json(facts))
        return 0
    put(escaped(facts.run.path), bold=True)
    for name, text in _lines(facts):
        put(f"  {name:<9}{escaped(text)}")
    return 0


def _look(run: RunDirectory) -> Facts:
    holder = holder_of(run)
    waiting = None
    if holder is not None and holder.is_here:
        try:
            waiting = standing_of(run.path).waiting
        except (NobodyTrains, AgentLost, NotARun):
            waiting = None
    rows = rows_of(run)
    durable = max((row for row in rows if row.problem is None), key=lambda row: row.step, default=None)
    rows_since = iter_progress(run.progress_path, first_step=0 if durable is None else durable.step)
    last = next(iter(deque(rows_since, maxlen=1)), None)
    events, _ = ledger.read(run.ledger_path)
    return Facts(
        run=run,
        holder=holder,
        waiting=waiting,
        durable=durable,
        damaged=tuple(row.step for row in rows if row.problem is not None),
        last=last,
        last_age_s=None if last is None else max(0.0, time.time() - os.stat(run.progress_path).st_mtime),
        seconds_a_step=_seconds_a_step(events),
        last_event=events[-1] if events else None,
    )


def _seconds_a_step(events: Sequence[dict[str, Any]]) -> float | None:
    """From the last two commits of one start; None while there are not two."""
    commits: list[tuple[int, float]] = []
    for event in events:
        if event.get("event") == "opened":
            commits = []
        elif event.get("event") == ledger.COMMIT and isinstance(event.get("step"), int):
            try:
                commits.append((event["step"], datetime.fromisoformat(str(event.get("time"))).timestamp()))
            except ValueError:
                continue
    for (step, when), (later_step, later) in zip(commits[-2::-1], commits[:0:-1], strict=False):
        if later_step > step and later > when:
            return (later - when) / (later_step - step)
    return None


def _lines(facts: Facts) -> list[tuple[str, str]]:
    found = [("training", _training(facts))]
    if facts.holder is not None and facts.last is not None:
        ago = "" if facts.last_age_s is None else f", {lines.age(facts.last_age_s)}"
        batch = f"epoch {facts.last.epoch + 1:,}, batch {lines.count(facts.last.batch)}"
        found.append(("step", f"{lines.count(facts.last.step)} has finished ({batch}){ago}"))
    found.append(("durable", _durable(facts)))
    if facts.waiting:
        found.append(("saving", f"{lines.counted(facts.waiting, 'save')} not yet durable"))
    if facts.end is None:
        found.append(("cost", _cost(facts)))
    for step in facts.damaged:
        found.append(("damaged", f"step {lines.count(step)}; stepfast verify says what"))
    if facts.last_event is not None:
        found.append(("last", f"{local_time(facts.last_event.get('time', ''))}  {words(facts.last_event)}"))
    return found


def _training(facts: Facts) -> str:
    holder = facts.holder
    if holder is None:
        return "nobody" if facts.end is None else f"nobody; the run is finished ({facts.end})"
    if not holder.is_alive:
        return f"nobody; the agent of {holder.words} is writing its last words"
    silent = "" if facts.waiting is not None or not holder.is_here else "; its agent does not answer"
    elsewhere = "" if holder.is_here else "; on another host, so what it waits for cannot be seen here"
    return f"{holder.words}{silent}{elsewhere}"


def _durable(facts: Facts) -> str:
    row = facts.durable
    if row is None or row.manifest is None:
        return "nothing yet"
    epoch, batch = shown_place(row.manifest)
    where = "the end" if facts.end is not None else f"epoch {epoch}, next batch {batch}"
    age = lines.age(age_of(row.manifest.created))
    why = f" ({', '.join(row.manifest.reasons)})" if row.manifest.reasons else ""
    return f"step {lines.count(row.step)}, {where}, {age}{why}"


def _cost(facts: Facts) -> str:
    """Of a crash now; of the one that was, where nobody trains."""
    when = "a crash now would cost" if facts.holder is not None else "the next start computes again"
    if not facts.cost_steps:
        return f"{when} nothing but the step in flight" if facts.holder is not None else f"{when} nothing"
    text = f"{when} {lines.counted(facts.cost_steps, 'finished step')}"
    if facts.seconds_a_step is not None:
        text += f", about {lines.duration(facts.cost_steps * facts.seconds_a_step)}"
    return text


def _json(facts: Facts) -> dict[str, Any]:
    manifest = None if facts.durable is None else facts.durable.manifest
    return {
        "run": str(facts.run.path),
        "run_id": facts.run.run_id,
        "training": facts.holder is not None and facts.holder.is_alive,
        "holder": None if facts.holder is None else facts.holder.fields,
        "agent_answers": facts.waiting is not None,
        "saves_waiting": facts.waiting,
        "finished_steps": facts.finished_steps,
        "last_finished": None
        if facts.last is None
        else {"step": facts.last.step, "epoch": facts.last.epoch, "batch": facts.last.batch},
        "durable_step": None if facts.durable is None else facts.durable.step,
        "durable_created": None if manifest is None else manifest.created,
        "finished": facts.end,
        "computed_again_after_a_crash": facts.cost_steps,
        "seconds_a_step": facts.seconds_a_step,
        "damaged_steps": facts.damaged,
        "last_event": facts.last_event,
    }
