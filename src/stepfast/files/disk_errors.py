"""An OSError of a write, said in words with the next thing to do. Nothing is decided here."""

from __future__ import annotations

import errno
import os

from stepfast.core.errors import StorageFailed

_HINTS = {
    errno.ENOSPC: "free space on that disk, or keep fewer checkpoints; the next save tries again",
    errno.EDQUOT: "your quota on that disk is used up: free space, or put the run elsewhere",
    errno.EFBIG: "a limit on the size of files is set (ulimit -f): raise it",
    errno.EROFS: "the disk is mounted read-only: mount it for writing, or put the run elsewhere",
    errno.EACCES: "you may not write there: change the owner or the mode, or put the run elsewhere",
    errno.EPERM: "you may not write there: change the owner or the mode, or put the run elsewhere",
    errno.EIO: "the disk reports an error: look at the kernel's log (dmesg), and put the run on another disk",
    errno.ENOENT: "the run directory was moved, deleted or taken over by another process: start again",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
}


def storage_failed(error: OSError, doing: str, path: str | os.PathLike[str]) -> StorageFailed:
    """The error to raise when `doing` (such as "write") went wrong at `path`."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    name = errno.errorcode.get(error.errno or 0, "")
    return StorageFailed(
        f"cannot {doing} {os.fspath(path)}: {reason}" + (f" ({name})" if name else ""),
        hint=_HINTS.get(error.errno or 0, "what was committed before is intact; look at the disk"),
    )
