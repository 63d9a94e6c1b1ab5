"""Which checkpoints may go. Pure: it plans, `store.tidy` deletes.

Two rules come before what is asked for: a tagged checkpoint stays, and the newest one that is known to be
intact stays; if none is known to be intact, nothing goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepfast.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Keep the newest `newest` checkpoints and, unless `tags` is False, all tagged ones."""

    newest: int = 3
    tags: bool = True

    def __post_init__(self) -> None:
        if type(self.newest) is not int or self.newest < 1:
            raise UsageError(f"keep: newest={self.newest!r}, at least 1 must be kept", hint="Retention(newest=3)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the plan must know of a checkpoint.

    `verified`: True when its digests were seen to fit (also by the writer that committed it), False when it
    is known to be damaged, None when nobody looked.
    """

    step: int
    verified: bool | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps to delete and to keep, ascending, and why, by step."""

    delete: tuple[int, ...] = ()
    keep: tuple[int, ...] = ()
    reasons: dict[int, str] = field(default_factory=dict)


def plan(checkpoints: Sequence[Kept], retention: Retention) -> Plan:
    """Plan; nothing is done."""
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True)
    newest_verified = next((checkpoint.step for checkpoint in ordered if checkpoint.verified), None)
    reasons: dict[int, str] = {}
    delete: list[int] = []
    place = 0
    for checkpoint in ordered:
        step = checkpoint.step
        if checkpoint.verified is not False:  # a damaged one takes nobody's place
            place += 1
        if checkpoint.tags and retention.tags:
            reasons[step] = f"kept: tagged {', '.join(sorted(checkpoint.tags))}"
        elif checkpoint.verified is False:
            reasons[step] = "kept: damaged, to be looked at"
        elif place <= retention.newest:
            reasons[step] = f"kept: number {place} of the newest {retention.newest}"
        elif step == newest_verified:
            reasons[step] = "kept: the newest that is known to be intact"
        elif newest_verified is None:
            reasons[step] = "kept: no checkpoint is known to be intact"
        else:
            reasons[step] = f"deleted: older than the newest {retention.newest}"
            delete.append(step)
    keep = tuple(sorted(reasons.keys() - set(delete)))
    return Plan(delete=tuple(sorted(delete)), keep=keep, reasons=reasons)
