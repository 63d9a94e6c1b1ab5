"""What every step saw: bits of its losses and a digest of its batch, appended by the trainer, never synced.

It survives kill -9, not the machine, and is only ever compared, never loaded. Not here: the comparison.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepfast.core.errors import Damaged
from stepfast.files import strict
from stepfast.files.disk_errors import storage_failed
from stepfast.files.durable import AnyPath

HAS_LOSS = 1
HAS_BATCH = 2
_OWN_FLAGS = HAS_LOSS | HAS_BATCH
NO_DIGEST = bytes(16)

_RECORD = struct.Struct("<QIIQI16sd16sI")
_BODY_BYTES = _RECORD.size - 4
_HEADER = b"stepfast-progress 1".ljust(_RECORD.size - 1) + b"\n"
_READ_RECORDS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """One finished step. `session` is filled in by the writer. Flags from 4 up are the writer's own."""

    step: int
    epoch: int
    batch: int
    flags: int = 0
    values_digest: bytes = NO_DIGEST
    loss: float | None = None
    batch_digest: bytes | None = None
    session: int = 0


class ProgressWriter:
    """Appends rows, one write each. The file is made when it is missing; a torn tail is cut off first."""

    def __init__(self, path: AnyPath) -> None:
        self._path = Path(path)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._fd = os.open(self._path, flags, 0o600)
            try:
                self.session = self._open_session()
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise storage_failed(error, "write", self._path) from error

    def append(self, row: ProgressRow) -> None:
        """Write one row.

        Raises:
            StorageFailed: the disk refused. A torn record is cut off by the next writer; do not append again.
        """
        try:
            done = os.write(self._fd, _encode(row, self.session))
        except OSError as error:
            raise storage_failed(error, "write", self._path) from error
        if done != _RECORD.size:
            raise storage_failed(OSError("the disk took a part only"), "write", self._path)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open_session(self) -> int:
        size = os.fstat(self._fd).st_size
        if size < _RECORD.size:  # empty, or the header itself is torn
            os.ftruncate(self._fd, 0)
            os.write(self._fd, _HEADER)
            return 1
        if os.pread(self._fd, _RECORD.size, 0) != _HEADER:
            raise Damaged(f"{self._path} does not begin like a progress file of format 1", hint="move it away")
        whole = size // _RECORD.size * _RECORD.size
        if whole != size:
            os.ftruncate(self._fd, whole)
        # The newest intact record tells the session; bits may have rotted, so look further back.
        for offset in range(whole - _RECORD.size, max(0, whole - 100 * _RECORD.size), -_RECORD.size):
            row = _decode(os.pread(self._fd, _RECORD.size, offset))
            if row is not None:
                return row.session + 1
        return 1


def read_progress(path: AnyPath, *, first_step: int = 0) -> dict[int, ProgressRow]:
    """The newest row of each step from `first_step` on; empty when there is no file.

    Raises:
        Damaged: it is no progress file.
    """
    return {row.step: row for row in iter_progress(path, first_step=first_step)}


def iter_progress(path: AnyPath, *, first_step: int = 0) -> Iterator[ProgressRow]:
    """All intact rows in the order they were written."""
    path = Path(path)
    try:
        fd = strict.open_file(path.parent, path.name)
    except FileNotFoundError:
        return
    try:
        header = strict.read_some(fd, _RECORD.size, 0, str(path))
        if len(header) == _RECORD.size and header != _HEADER:
            raise Damaged(f"{path} does not begin like a progress file of format 1", hint="move it away")
        offset = _RECORD.size
        while data := strict.read_some(fd, _READ_RECORDS * _RECORD.size, offset, str(path)):
            whole = len(data) // _RECORD.size * _RECORD.size
            for start in range(0, whole, _RECORD.size):
                if int.from_bytes(data[start : start + 8], "little") >= first_step:
                    row = _decode(data[start : start + _RECORD.size])
                    if row is not None:
                        yield row
            if not whole:
                return
            offset += whole
    finally:
        os.close(fd)


def _encode(row: ProgressRow, session: int) -> bytes:
    flags = row.flags & ~_OWN_FLAGS & 0xFFFFFFFF
    flags |= HAS_LOSS if row.loss is not None else 0
    flags |= HAS_BATCH if row.batch_digest is not None else 0
    body = _RECORD.pack(
        row.step,
        row.epoch,
        session,
        row.batch,
        flags,
        row.values_digest,
        0.0 if row.loss is None else row.loss,
        row.batch_digest or NO_DIGEST,
        0,
    )[:_BODY_BYTES]
    assert len(row.values_digest) == 16, "a digest has 16 bytes"
    assert row.batch_digest is None or len(row.batch_digest) == 16, "a digest has 16 bytes"
    return body + zlib.crc32(body).to_bytes(4, "little")


def _decode(record: bytes) -> ProgressRow | None:
    if len(record) != _RECORD.size or zlib.crc32(record[:_BODY_BYTES]) != int.from_bytes(
        record[_BODY_BYTES:], "little"
    ):
        return None
    step, epoch, session, batch, flags, values_digest, loss, batch_digest, _ = _RECORD.unpack(record)
    return ProgressRow(
        step=step,
        epoch=epoch,
        batch=batch,
        flags=flags,
        values_digest=values_digest,
        loss=loss if flags & HAS_LOSS else None,
        batch_digest=batch_digest if flags & HAS_BATCH else None,
        session=session,
    )
