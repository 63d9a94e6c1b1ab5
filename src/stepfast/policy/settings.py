"""The comparison of this start's settings with those the run was started with. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stepfast.core.errors import SettingChanged, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting with both values. None stands for "not there"."""

    key: str
    was: object
    now: object


def compare(was: Mapping[str, object], now: Mapping[str, object]) -> list[Change]:
    return [
        Change(key=key, was=was.get(key), now=now.get(key))
        # A class first: settings that only one of the two classes has follow from it.
        for key in sorted({*was, *now}, key=lambda key: (not key.endswith("class"), key))
        if _text(was.get(key)) != _text(now.get(key))
    ]


def accept(changes: Iterable[Change], allowed: Iterable[str], *, path: str, script: str) -> list[Change]:
    """The changes that `allowed` names; any other is a SettingChanged that names both values and both ways on."""
    allowed = set(allowed)
    changes = list(changes)
    refused = [change for change in changes if change.key not in allowed]
    if refused:
        first = refused[0]
        more = f" ({len(refused) - 1} more: {', '.join(c.key for c in refused[1:5])})" if len(refused) > 1 else ""
        names = ",".join(sorted({change.key for change in refused} | (allowed & {c.key for c in changes})))
        go_on = f"go on with the new value: STEPFAST_CHANGE={names} python {script}"
        if first.key.startswith("optimizer") and first.key.endswith("class"):
            go_on = f"go on with the old one: {show(first.was)}"  # its moments mean nothing to another optimizer
        raise SettingChanged(
            f"{path} was started with {first.key}={show(first.was)}; {script} has {show(first.now)}{more}",
            hint=f"{go_on}; start over: STEPFAST_RESUME=fresh python {script}",
        )
    return changes


def check_allowed(allowed: Iterable[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in allowed if name.strip())
    if any("=" in name for name in names):
        raise UsageError(
            f"change={', '.join(names)}: names of settings are needed, not values",
            hint="set the new value in the script and name the setting: STEPFAST_CHANGE=optimizer.lr",
        )
    return names


def show(value: object) -> str:
    return "nothing" if value is None else _text(value).strip('"')


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
