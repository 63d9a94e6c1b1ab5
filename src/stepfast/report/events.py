"""Events of a run's ledger in words. Pure; the events come from a file, so no field is trusted to be there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stepfast.report.lines import count, counted, duration, size

Event = Mapping[str, Any]


def words(event: Event) -> str:
    """One event, without its time."""
    kind = str(event.get("event", "?"))
    say = _WORDS.get(kind)
    return say(event) if say is not None else _any(kind, event)


def _opened(event: Event) -> str:
    moved = f"; the run before it was moved to {event['moved_to']}" if event.get("moved_to") else ""
    return (
        f"start number {event.get('attempt', '?')}: {event.get('script', '?')}, process "
        f"{event.get('trainer_pid', '?')} on {event.get('host', '?')}{moved}"
    )


def _commit(event: Event) -> str:
    reasons = event.get("reasons")
    why = f" ({', '.join(map(str, reasons))})" if isinstance(reasons, list) and reasons else ""
    name = f", tag {event['name']}" if event.get("name") else ""
    text = f"step {_count(event.get('step'))} saved{why}{name}: "
    text += f"{_size(event.get('bytes_written'))} written in {_duration(event.get('k1_s'))}"
    return text + f", training waited {_duration(event.get('k0_s'))}"


def _failed(event: Event) -> str:
    return f"the save of step {_count(event.get('step'))} failed: {event.get('message', '?')}"


def _tidied(event: Event) -> str:
    steps = event.get("steps")
    shown = ", ".join(_count(step) for step in steps) if isinstance(steps, list) else "?"
    return f"older checkpoints deleted: step {shown}"


def _died(event: Event) -> str:
    return "the trainer died; what it had handed over was written"


def _closed(event: Event) -> str:
    return f"the trainer left: {event.get('reason', '?')}"


def _resumed(event: Event) -> str:
    again = event.get("computed_again")
    text = f"resumed at step {_count(event.get('step'))}"
    if isinstance(again, int):
        text += f", {counted(again, 'step')} to compute again" if again else ", nothing to compute again"
    if isinstance(passed := event.get("passed_over"), list) and passed:
        text += f"; damaged, not used: {'; '.join(map(str, passed))}"
    if isinstance(changed := event.get("changed"), list) and changed:
        text += f"; settings changed: {', '.join(map(str, changed))}"
    return text


def _checked(event: Event) -> str:
    return str(event.get("verdict", "?"))


def _differs(event: Event) -> str:
    return f"step {_count(event.get('step'))} is not as it was before the crash: the {event.get('what', '?')} differs"


def _left_out(event: Event) -> str:
    batches, epoch = event.get("batches"), event.get("epoch")
    many = counted(batches, "batch", "batches") if isinstance(batches, int) else "some batches"
    return f"epoch {epoch + 1 if isinstance(epoch, int) else '?'} ended by break: {many} left out"


def _any(kind: str, event: Event) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("event", "time"))
    return f"{kind}: {rest}" if rest else kind


def _count(value: object) -> str:
    return count(value) if isinstance(value, int) else "?"


def _size(value: object) -> str:
    return size(value) if isinstance(value, int) else "?"


def _duration(value: object) -> str:
    return duration(value) if isinstance(value, (int, float)) else "?"


_WORDS: dict[str, Callable[[Event], str]] = {
    "opened": _opened,
    "commit": _commit,
    "failed": _failed,
    "tidied": _tidied,
    "trainer-died": _died,
    "closed": _closed,
    "resumed": _resumed,
    "resume-checked": _checked,
    "resume-differs": _differs,
    "batches-left-out": _left_out,
}
