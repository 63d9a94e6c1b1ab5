"""The lock that makes a run's writer the only one.

Held by the agent, which never forks foreign code: a forked child would keep it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Any

from stepfast.core.errors import Damaged, NotARun
from stepfast.files import strict, strict_json
from stepfast.files.disk_errors import storage_failed
from stepfast.files.durable import AnyPath, write_all

LOCK_NAME = "lock"
LIMIT_BYTES = 64 << 10
_ATTEMPTS = 5
_PAUSE_S = 0.01


class RunLock:
    """`RUN/lock` of the run directory at `path`."""

    def __init__(self, path: AnyPath) -> None:
        self._dir = Path(path)
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        """By this object."""
        return self._fd is not None

    def try_acquire(self, holder: dict[str, Any]) -> bool:
        """Take the lock and say who has it; False when somebody else does. Never waits for long."""
        assert self._fd is None, "held already"
        content = strict_json.dumps(holder)
        path = self._dir / LOCK_NAME
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise Damaged(f"{path} is not a regular file", hint="remove it") from error
            raise storage_failed(error, "open the lock", path) from error
        try:
            if not self._lock(fd):
                os.close(fd)
                return False
            if not _is_still(path, fd):  # the run directory was moved away between open and lock
                os.close(fd)
                raise NotARun(f"{self._dir} was moved or deleted just now", hint="start again")
            os.ftruncate(fd, 0)
            write_all(fd, content)
        except OSError as error:
            os.close(fd)
            raise storage_failed(error, "write the lock", path) from error
        self._fd = fd
        return True

    def holder(self) -> dict[str, Any] | None:
        """What the holder said about itself ({} if it cannot be read); None when nobody holds the lock."""
        try:
            fd = strict.open_file(self._dir, LOCK_NAME)
        except FileNotFoundError:
            return None
        try:
            if _try(fd, fcntl.LOCK_SH):  # let go at once by closing
                return None
            data = strict.read_some(fd, LIMIT_BYTES, 0, str(self._dir / LOCK_NAME))
        finally:
            os.close(fd)
        try:
            content = strict_json.loads(data, max_bytes=LIMIT_BYTES)
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def release(self) -> None:
        """Let go. Nothing to do when it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _lock(self, fd: int) -> bool:
        for attempt in range(_ATTEMPTS):
            if _try(fd, fcntl.LOCK_EX):
                return True
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_PAUSE_S)  # somebody may just be looking (`holder`)
        return False


def _try(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, fd: int) -> bool:
    try:
        named, ours = os.lstat(path), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)
