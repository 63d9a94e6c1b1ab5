"""`stepfast save` and `stepfast stop`: asked of the agent of a run that trains on this machine."""

from __future__ import annotations

from stepfast.cli.asking import ask
from stepfast.cli.output import put, talk
from stepfast.cli.places import open_run
from stepfast.core.errors import UsageError
from stepfast.report.lines import count
from stepfast.report.plain import escaped
from stepfast.store import names
from stepfast.wire.messages import Ask

LEAVING_S = 30.0


def save(place: str, *, name: str | None, timeout_s: float) -> int:
    """Wait until the next boundary's checkpoint is durable; its path is the answer."""
    if name is not None and not names.is_tag(name):
        raise UsageError(f"{name!a} cannot be a tag", hint="letters, digits, . _ - (not only digits, not `latest`)")
    run = open_run(place)
    done, _ = ask(run.path, Ask(what="save", name=name, timeout_s=timeout_s))
    talk(f"step {count(done.step)} is durable" + (f", kept as {escaped(place)}@{name}" if name else ""))
    put(escaped(done.path))
    return 0


def stop(place: str, *, timeout_s: float) -> int:
    """The same, and the trainer leaves with exit status 75."""
    run = open_run(place)
    done, has_left = ask(run.path, Ask(what="stop", timeout_s=timeout_s), until_gone_s=LEAVING_S)
    if has_left:
        talk(f"stopped; step {count(done.step)} is durable, the next start goes on there")
        talk(f"nobody works in {escaped(run.path)} any more: it may be moved, or deleted with rm -r")
    else:
        talk(f"step {count(done.step)} is durable; the trainer is still leaving")
    put(escaped(done.path))
    return 0
