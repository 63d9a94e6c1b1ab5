"""Which file system a path lies on, and what it is known to keep. Reads /proc; writes nothing."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from stepfast.files.durable import AnyPath

DURABLE = frozenset(("ext4", "xfs", "btrfs"))
"""Local file systems whose write order was examined: what is committed there survives a power cut."""

IN_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Where a path lies."""

    kind: str
    point: str
    is_read_only: bool


def mount_of(path: AnyPath, table: Path = Path("/proc/self/mountinfo")) -> Mount | None:
    """The mount that holds a path; None where nothing tells."""
    real = os.path.realpath(path)
    found = None
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        before, dash, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(tail) < 3:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # Later lines cover earlier ones at the same place.
        if inside and (found is None or len(point) >= len(found.point)):
            options = {*fields[5].split(","), *tail[2].split(",")}
            found = Mount(kind=tail[0], point=point, is_read_only="ro" in options)
    return found


def free_bytes(path: AnyPath) -> int:
    """What an ordinary user may still write there; quotas are not seen."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize
