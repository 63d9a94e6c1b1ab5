"""Bars of letters: which part of a run a session skipped, computed again, computed for the first time. Pure."""

from __future__ import annotations

from collections.abc import Sequence

SKIPPED, AGAIN, NEW, LEFT = "░", "▒", "█", "·"
"""Four letters that differ without colour."""


def cells(width: int, total: int, parts: Sequence[tuple[int, str]]) -> str:
    """`width` letters for `total` batches. `parts`: (first batch behind this part, its letter), ascending.

    What no part covers is LEFT. A part that has a batch has a letter, where there is room.
    """
    assert width > 0, "a bar has a width"
    shown = ""
    before = 0
    for end, letter in parts:
        until = round(width * min(end, total) / total) if total else 0
        if end > before:
            until = max(until, len(shown) + 1)
            before = end
        shown += letter * (until - len(shown))
    return shown[:width] + LEFT * (width - len(shown))


def session_parts(at: int, *, first: int, seen: int) -> list[tuple[int, str]]:
    """A session that began at batch `first` and is at batch `at`; batches below `seen` were computed before."""
    parts = [(first, SKIPPED), (min(at, seen), AGAIN), (at, NEW)]
    return [(end, letter) for end, letter in parts if end > 0]
