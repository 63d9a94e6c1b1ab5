"""What happened in a run: one line of JSON an event, each with its own checksum, only ever appended."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

from stepfast.core.errors import Damaged, UsageError
from stepfast.files import durable, strict, strict_json
from stepfast.files.disk_errors import storage_failed
from stepfast.files.durable import AnyPath

MAX_LINE_BYTES = 1 << 20
MAX_BYTES = 1 << 30
COMMIT = "commit"
_MARK = b',"crc32":"'
_TAIL_BYTES = len(_MARK) + 8 + len(b'"}')


def append(path: AnyPath, event: dict[str, Any], *, sync: bool = False) -> None:
    """Append an event. It is durable on return if `sync`, and always if its `event` is `commit`.

    Raises:
        UsageError: it is empty, too long, or nothing JSON can hold.
        StorageFailed: the disk refused.
    """
    try:
        body = strict_json.dumps(event, indent=None)
    except ValueError as error:
        raise UsageError(f"this cannot stand in the ledger: {error}") from error
    if not event or "crc32" in event or len(body) + _TAIL_BYTES > MAX_LINE_BYTES:
        raise UsageError("a ledger event is a non-empty object of less than 1 MiB without a member crc32")
    body = body[:-1]
    line = body + _MARK + f"{zlib.crc32(body):08x}".encode() + b'"}\n'
    try:
        durable.append_line(path, line, sync=sync or event.get("event") == COMMIT)
    except OSError as error:
        raise storage_failed(error, "write", path) from error


def read(path: AnyPath) -> tuple[list[dict[str, Any]], int]:
    """The events in order, without their checksums, and how many lines are damaged. No file: no events.

    Raises:
        Damaged: it is no file that can be read at all.
    """
    path = Path(path)
    try:
        fd = strict.open_file(path.parent, path.name)
    except FileNotFoundError:
        return [], 0
    events: list[dict[str, Any]] = []
    damaged = 0
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_size > MAX_BYTES:
            raise Damaged(f"{path} has more than {MAX_BYTES} bytes")
        while line := file.readline(MAX_LINE_BYTES + 1):
            if line == b"\n":
                continue
            event = _event(line.removesuffix(b"\n")) if len(line) <= MAX_LINE_BYTES else None
            if event is None:
                damaged += 1
            else:
                events.append(event)
    return events, damaged


def _event(line: bytes) -> dict[str, Any] | None:
    body, tail = line[:-_TAIL_BYTES], line[-_TAIL_BYTES:]
    if tail != _MARK + f"{zlib.crc32(body):08x}".encode() + b'"}':
        return None
    try:
        event = strict_json.loads(body + b"}", max_bytes=MAX_LINE_BYTES)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
