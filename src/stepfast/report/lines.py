"""Numbers as people read them: counts, sizes, durations, ages. Pure functions; no clock is read."""

from __future__ import annotations

_SIZE_UNITS = ("kB", "MB", "GB", "TB", "PB")


def count(number: int) -> str:
    """A whole number with separators: 3,810."""
    return f"{number:,}"


def counted(number: int, one: str, many: str = "") -> str:
    """A number and its noun: 1 step, 3,810 steps."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(size_bytes: int) -> str:
    """A size in powers of 1,000, as disks are sold and `ls` of file managers show it: 2.1 GB."""
    if abs(size_bytes) < 1000:
        return counted(size_bytes, "byte")
    value = float(size_bytes)
    for unit in _SIZE_UNITS:
        value /= 1000
        # 999.95 would be shown as 1000.0: the next unit is the better word for it.
        if abs(value) < 999.95 or unit == _SIZE_UNITS[-1]:
            return f"{value:,.1f} {unit}"
    raise AssertionError("the last unit always returns")


def duration(duration_s: float) -> str:
    """How long something took, in at most two units: 0.4 ms, 12.3 s, 4 min 5 s, 2 h 10 min, 3 d 4 h."""
    if duration_s < 0:
        return "-" + duration(-duration_s)
    if duration_s < 0.01:
        return f"{duration_s * 1000:.1f} ms"
    if duration_s < 0.9995:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 59.95:
        return f"{duration_s:.1f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(round(duration_s / 60), 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(duration_s / 3600), 24)
    return f"{days:,} d {hours} h" if hours else f"{days:,} d"


def age(age_s: float) -> str:
    """How long ago something happened, in one unit: 17 min ago.

    A clock that was set back gives a negative age; that is said as "just now", not as a time to come.
    """
    if age_s < 2:
        return "just now"
    if age_s < 59.5:
        return f"{age_s:.0f} s ago"
    if age_s < 59.5 * 60:
        return f"{age_s / 60:.0f} min ago"
    if age_s < 47.5 * 3600:
        return f"{age_s / 3600:.0f} h ago"
    return f"{age_s / 86400:,.0f} days ago"


def minutes(duration_s: float) -> str:
    """Minutes with one decimal: 21.5 min."""
    return f"{duration_s / 60:,.1f} min"


def percent(part: float, whole: float) -> str:
    """A share in whole percent: 31 %. Of nothing there is no share: a dash."""
    return f"{100 * part / whole:.0f} %" if whole else "–"
