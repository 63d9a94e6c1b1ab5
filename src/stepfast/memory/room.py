"""How much host memory can still be taken, within the host and its memory groups. Reads, never takes."""

from __future__ import annotations

from pathlib import Path


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that can be taken before something is killed for it; None where nothing tells."""
    limits = [size for size in (_host_bytes(proc), _group_bytes(proc, cgroup)) if size is not None]
    return min(limits, default=None)


def _host_bytes(proc: Path) -> int | None:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group_bytes(proc: Path, cgroup: Path) -> int | None:
    """The tightest group on the way up. Version 2 of the interface only; version 1 counts as no limit."""
    paths = [line.removeprefix("0::") for line in _lines(proc / "self/cgroup") if line.startswith("0::")]
    if not paths:
        return None
    room: int | None = None
    group = cgroup / paths[0].strip("/")
    while group != cgroup.parent:
        limit = "".join(_lines(group / "memory.max"))
        used = "".join(_lines(group / "memory.current"))
        if limit.isdigit() and used.isdigit():
            # Page cache of the group is given back under pressure, so it does not count as used.
            cache = sum(
                int(line.split()[1])
                for line in _lines(group / "memory.stat")
                if line.startswith(("inactive_file ", "active_file "))
            )
            here = max(0, int(limit) - int(used) + cache)
            room = here if room is None else min(room, here)
        group = group.parent
    return room


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
