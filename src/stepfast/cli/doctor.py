"""`stepfast doctor RUN`: every check with its result in words; exit status 1 if one of them needs a hand."""

from __future__ import annotations

import os

from stepfast.cli.checks import NEEDS_A_HAND, Check, check_run
from stepfast.cli.output import put, put_json, talk
from stepfast.cli.places import open_run
from stepfast.core.errors import Damaged, FormatTooNew
from stepfast.report import lines
from stepfast.report.plain import escaped
from stepfast.store.run_directory import RunDirectory

_WORDS = {"ok": ("ok", "green"), "note": ("note", "yellow"), NEEDS_A_HAND: ("HELP", "red")}

TOUCHES = (
    "the objects given to Run, read at a save and written by a resume; nothing is hooked or patched",
    "handlers for SIGINT, SIGTERM and SIGUSR1, only while the loop iterates",
    "one process beside the trainer, the agent: in a session of its own, gone when the trainer has ended and all "
    "is written",
    "host memory for copies of the train state",
    "the run's directory, and nothing else on the disk; `rm -r` of it is safe when nobody trains in it",
)


def doctor(place: str, *, as_json: bool) -> int:
    """Look at a run. Nothing is changed."""
    checks = _checks(place)
    needs = [check for check in checks if check.state == NEEDS_A_HAND]
    if as_json:
        found = [{"name": c.name, "state": c.state, "text": c.text, "hint": c.hint or None} for c in checks]
        put_json({"run": os.path.realpath(place), "in_order": not needs, "checks": found, "touches": TOUCHES})
        return int(bool(needs))
    put(escaped(os.path.realpath(place)), bold=True)
    for check in checks:
        word, colour = _WORDS[check.state]
        put(f"  {word:<4}  {check.name:<12}  {escaped(check.text)}", style=None if word == "ok" else colour)
        if check.hint:
            put(escaped(f"        {'':<12}  -> {check.hint}"))
    put()
    put("What Stepfast touches", bold=True)
    for text in TOUCHES:
        put(f"  {text}")
    talk("everything is in order" if not needs else f"{lines.counted(len(needs), 'thing')} to look after")
    return int(bool(needs))


def _checks(place: str) -> list[Check]:
    if not RunDirectory.is_run(place):
        open_run(place)  # says why it is none
    try:
        run = open_run(place)
    except (Damaged, FormatTooNew) as error:
        return [Check(name="directory", state=NEEDS_A_HAND, text=error.message, hint=error.hint)]
    return check_run(run)
