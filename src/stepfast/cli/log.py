"""`stepfast log`: the ledger of a run, oldest first."""

from __future__ import annotations

from stepfast.cli.output import put, put_json, talk
from stepfast.cli.places import local_time, open_run
from stepfast.report import lines
from stepfast.report.events import words
from stepfast.report.plain import escaped
from stepfast.store import ledger

_STYLES = {"failed": "red", "trainer-died": "red", "resume-differs": "red"}


def log(place: str, *, last: int | None, as_json: bool) -> int:
    """Every event, or the last ones."""
    run = open_run(place)
    events, num_damaged = ledger.read(run.ledger_path)
    shown = events if last is None else events[-last:]
    if as_json:
        put_json({"run": str(run.path), "run_id": run.run_id, "num_damaged_lines": num_damaged, "events": shown})
        return 0
    for event in shown:
        text = f"{local_time(event.get('time', '')):<19}  {words(event)}"
        put(escaped(text), style=_STYLES.get(str(event.get("event"))))
    if not events:
        talk(f"nothing has happened yet in {escaped(run.path)}")
    if num_damaged:
        talk(f"{lines.counted(num_damaged, 'line')} of the ledger damaged and left out")
    return 0
