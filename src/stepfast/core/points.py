"""Named points where a test can make a fault happen. In production every point is an empty call."""

from __future__ import annotations

from collections.abc import Callable

_table: dict[str, Callable[[], None]] = {}


def point(name: str) -> None:
    """Run the fault planted at `name`, if any."""
    if _table and (fault := _table.get(name)) is not None:
        fault()


def plant(name: str, fault: Callable[[], None]) -> None:
    _table[name] = fault


def clear() -> None:
    _table.clear()
