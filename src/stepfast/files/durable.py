"""Writing so that it stays written: sync, exclusive creation, replacing, renaming, deleting.

Everything here raises OSError. A write or sync that failed is final: the file is given up (and removed), and
nobody may read it back to see whether it went well, since the page cache shows bytes that the disk has not.
Not here: what the files mean and in which order they are written (`store`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from stepfast.core.words import BLOCK_BYTES

AnyPath: TypeAlias = "str | os.PathLike[str]"

PIECE_BYTES = 8 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def fsync_dir(path: AnyPath) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(path: AnyPath, mode: int = 0o700) -> None:
    """Make a directory and those above it that are missing, each durable in its parent."""
    missing = []
    here = Path(os.path.abspath(path))
    while not here.exists() and not here.is_symlink():
        missing.append(here)
        here = here.parent
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, mode)
            os.chmod(directory, mode)  # whatever the umask
        fsync_dir(directory.parent)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))


def fsync_parents(path: AnyPath) -> None:
    """Make the names of all directories above durable, as far as we may. One of them may have been made by a process
    that was killed before it could."""
    here = Path(os.path.abspath(path))
    device = os.stat(here).st_dev
    for above in here.parents:
        with contextlib.suppress(PermissionError):  # one that we may enter, but not list
            if os.stat(above).st_dev != device:
                return
            fsync_dir(above)


def write_all(fd: int, data: memoryview | bytes) -> None:
    """Write all of it: the kernel may take a part only (a full disk, a size limit)."""
    view = memoryview(data).cast("B")
    while view:
        written = os.write(fd, view)
        if written == 0:
            raise OSError(errno.EIO, "the disk took no bytes")
        view = view[written:]


@contextlib.contextmanager
def _given_up_on_error(path: AnyPath, fd: int) -> Iterator[None]:
    """Close `fd`; when the block failed, remove the file, which is good for nothing any more."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    os.close(fd)


def write_file(path: AnyPath, data: bytes | memoryview, mode: int = 0o444) -> None:
    """Make a file that did not exist, with this content, durable. Its name is not: sync the directory."""
    fd = os.open(path, _CREATE, 0o600)
    with _given_up_on_error(path, fd):
        write_all(fd, data)
        os.fchmod(fd, mode)
        os.fsync(fd)


def write_direct(path: AnyPath, pieces: Iterable[memoryview], size: int, mode: int = 0o444) -> None:
    """Make a file of `size` bytes from `pieces`, durable; its name is not.

    Pieces that begin at a multiple of 4 KiB in memory and in the file go past the page cache as long as the
    file system takes it; the rest, such as the end of the file, is written in the ordinary way.

    Raises:
        OSError: the disk refused; the file is gone.
        ValueError: the pieces have another length than `size`.
    """
    fd = os.open(path, _CREATE, 0o600)
    with _given_up_on_error(path, fd):
        _reserve(fd, size)
        written = 0
        direct = _set_direct(fd, True)
        for piece in pieces:
            view = memoryview(piece).cast("B")
            if written + len(view) > size:
                raise ValueError(f"more than the {size} bytes that were announced for {os.fspath(path)}")
            while view:
                aligned = min(len(view) // BLOCK_BYTES * BLOCK_BYTES, PIECE_BYTES)
                if direct and not (aligned and written % BLOCK_BYTES == 0):
                    # The end of the file: through the page cache.
                    direct = _set_direct(fd, False) and False
                if not direct:
                    write_all(fd, view)
                    written += len(view)
                    break
                try:
                    done = os.write(fd, view[:aligned])
                except OSError as error:
                    if error.errno != errno.EINVAL:  # the piece lies badly in memory
                        raise
                    direct = _set_direct(fd, False) and False
                    continue
                written += done
                view = view[done:]
        if written != size:
            raise ValueError(f"{written} instead of the {size} bytes that were announced for {os.fspath(path)}")
        os.fchmod(fd, mode)
        os.fsync(fd)


def _reserve(fd: int, size: int) -> None:
    """A full disk is found before a byte is written."""
    if size == 0:
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV):
            raise


def _set_direct(fd: int, wanted: bool) -> bool:
    """Returns whether the file system agreed."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    flags = flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    except OSError as error:
        if error.errno == errno.EINVAL and wanted:
            return False
        raise
    return True


def replace_file(path: AnyPath, data: bytes, mode: int = 0o600) -> None:
    """Put a file in place as a whole: readers see the old content or the new one, also after a crash."""
    target = Path(path)
    # One fixed name is enough, since a run has one writer; what a dead one left is removed, never followed.
    temporary = target.with_name(f".{target.name}.new")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    write_file(temporary, data, mode)
    try:
        os.rename(temporary, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    fsync_dir(target.parent)


def append_line(path: AnyPath, line: bytes, *, sync: bool = False, mode: int = 0o600) -> None:
    """Append one line with one write.

    A torn line of a writer that died is closed first, so that two never become one.
    """
    if not line.endswith(b"\n") or line.count(b"\n") != 1:
        raise ValueError("not one line")
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, mode)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        write_all(fd, b"\n" + line if torn else line)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    if sync and size == 0:
        fsync_dir(Path(path).parent)


def link_or_copy(src: AnyPath, dst: AnyPath) -> bool:
    """Give a file a second name. False: the file system cannot, and `dst` is a durable copy instead."""
    try:
        os.link(src, dst, follow_symlinks=False)
        return True
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP):
            raise
    source = os.open(src, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fd = os.open(dst, _CREATE, 0o600)
        with _given_up_on_error(dst, fd):
            while piece := os.read(source, PIECE_BYTES):
                write_all(fd, piece)
            os.fchmod(fd, 0o444)
            os.fsync(fd)
    finally:
        os.close(source)
    return False


def delete_tree(path: AnyPath) -> None:
    """Delete a directory and all below it, never following a link out of it. Nothing there: nothing to do."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _renameat2(src: AnyPath, dst: AnyPath, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "renameat2", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    source, target = os.fsencode(src), os.fsencode(dst)
    if function(_AT_FDCWD, source, _AT_FDCWD, target, ctypes.c_uint(flags)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(src), None, os.fspath(dst))


def rename_noreplace(src: AnyPath, dst: AnyPath) -> None:
    """Rename; FileExistsError when `dst` exists (a plain rename would replace an empty directory)."""
    try:
        _renameat2(src, dst, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        # The kernel or the file system knows no flags (some network file systems). There is one writer,
        # which holds the lock, so looking first is enough.
        if os.path.lexists(dst):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(dst)) from None
        os.rename(src, dst)


def exchange(one: AnyPath, other: AnyPath) -> bool:
    """Swap two names in one instant. False: the file system cannot, and nothing was done."""
    try:
        _renameat2(one, other, _RENAME_EXCHANGE)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True
