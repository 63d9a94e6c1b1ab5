"""From raw values to a verdict. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MET = "met"
MISSED = "missed"
NO_DIFFERENCE = "no difference"


def null_spread(pairs: Sequence[tuple[float, float]]) -> float:
    """How far ours against ours was from 1 in the worst pair: what a difference has to exceed to be one."""
    return max((max(a, b) / min(a, b) - 1 for a, b in pairs), default=0.0)


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def verdict(measured: float, bar: float, spread: float) -> str:
    """Met or missed, where the distance to the bar is more than ours against ours differ."""
    if max(measured, bar) / min(measured, bar) - 1 <= spread:
        return NO_DIFFERENCE
    return MET if measured < bar else MISSED
