"""How much of the machine other processes took while something was measured."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reading:
    wall_s: float
    busy_s: float
    own_s: float


def read() -> Reading:
    """Seconds since boot in which a processor worked or was taken away; and what this process and its dead children
    took of them."""
    with open("/proc/stat", encoding="ascii") as stat:
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    own = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        own += usage.ru_utime + usage.ru_stime
    return Reading(time.monotonic(), busy, own)


def share(before: Reading, after: Reading) -> float:
    """Of all processors, between two readings."""
    wall = (after.wall_s - before.wall_s) * (os.cpu_count() or 1)
    return max(0.0, (after.busy_s - before.busy_s) - (after.own_s - before.own_s)) / wall
