"""Opening files of a directory that anybody may have filled: no links, no waiting, no surprises.

Names in a directory are input. A FIFO hangs a plain `open` for ever, a link leads out, a sparse file claims
1 TiB. A missing file stays FileNotFoundError; all other refusals are `Damaged`.
"""

from __future__ import annotations

import errno
import os
import re
import stat

from stepfast.core.errors import Damaged
from stepfast.files.durable import AnyPath

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OURS_TO_REPORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_name(name: object) -> bool:
    """Whether this can be the name of a file, a run or a tag."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def open_dir(path: AnyPath) -> int:
    """A descriptor of a directory that is no link itself."""
    try:
        return os.open(path, _FLAGS | os.O_DIRECTORY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(error, path, "directory") from error


def open_file(dir_path: AnyPath, name: str, size: int | None = None) -> int:
    """A descriptor of the regular file `name` of the directory, of exactly `size` bytes if given.

    Raises:
        FileNotFoundError: there is none.
        Damaged: it is anything else than asked for.
    """
    shown = os.path.join(os.fspath(dir_path), name)
    if not is_name(name):
        raise Damaged(f"{name!a} cannot be the name of a file in {os.fspath(dir_path)}")
    dir_fd = open_dir(dir_path)
    try:
        try:
            fd = os.open(name, _FLAGS, dir_fd=dir_fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _refused(error, shown, "file") from error
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise Damaged(f"{shown} is not a regular file")
            if facts.st_uid not in (os.geteuid(), 0, os.fstat(dir_fd).st_uid):
                raise Damaged(f"{shown} belongs to user {facts.st_uid}, its directory does not")
            if size is not None and facts.st_size != size:
                raise Damaged(f"{shown} has {facts.st_size} bytes, it must have {size}")
        except BaseException:
            os.close(fd)
            raise
        return fd
    finally:
        os.close(dir_fd)


def read_file(dir_path: AnyPath, name: str, limit: int) -> bytes:
    """All of a small file. More than `limit` bytes are refused before one is read."""
    fd = open_file(dir_path, name)
    shown = os.path.join(os.fspath(dir_path), name)
    try:
        size = os.fstat(fd).st_size
        if size > limit:
            raise Damaged(f"{shown} has {size} bytes, more than the {limit} allowed")
        data = bytearray()
        while len(data) <= limit and (piece := read_some(fd, limit + 1 - len(data), len(data), shown)):
            data += piece
        if len(data) != size:
            raise Damaged(f"{shown} changed while it was read")
        return bytes(data)
    finally:
        os.close(fd)


def read_some(fd: int, size: int, offset: int, shown: str) -> bytes:
    """pread whose failure names the file."""
    try:
        return os.pread(fd, size, offset)
    except OSError as error:
        raise _refused(error, shown, "file") from error


def read_into(fd: int, views: list[memoryview], offset: int, shown: str) -> None:
    """Fill the views, one after the other, from `offset` on; at most 1,024 of them."""
    wanted = sum(len(view) for view in views)
    while wanted:
        try:
            done = os.preadv(fd, views, offset)
        except OSError as error:
            raise _refused(error, shown, "file") from error
        if done == 0:
            raise Damaged(f"{shown} ends at byte {offset}, {wanted} bytes too early")
        wanted -= done
        offset += done
        if not wanted:
            return
        views = list(views)
        while done >= len(views[0]):
            done -= len(views.pop(0))
        views[0] = views[0][done:]


def _refused(error: OSError, shown: AnyPath, what: str) -> Exception:
    if error.errno in _OURS_TO_REPORT:
        return error
    shown = os.fspath(shown)
    if error.errno == errno.ELOOP or (error.errno == errno.ENOTDIR and os.path.islink(shown)):
        return Damaged(f"{shown} is a symbolic link, which is never followed here")
    if error.errno == errno.ENOTDIR:
        return Damaged(f"{shown} is not a {what}")
    if error.errno == errno.ENXIO:
        return Damaged(f"{shown} is not a regular file")
    hint = "check who owns it and its mode" if error.errno in (errno.EACCES, errno.EPERM) else ""
    return Damaged(f"{shown} cannot be read: {os.strerror(error.errno or 0)}", hint=hint)
