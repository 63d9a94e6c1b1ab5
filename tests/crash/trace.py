"""What a writer did to a directory: records its system calls with `strace` and reads the log back as calls.

Knows the form of strace's output and nothing of files, names or durability: that is `effects`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STRING_LIMIT_BYTES = 64 << 20
"""A single write may be this long; a longer one is refused by `effects`, never cut."""

TRACED = (
    "open,openat,openat2,creat,close,dup,dup2,dup3,fcntl,"
    "write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,lseek,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,mknod,mknodat,"
    "fsync,fdatasync,sync,syncfs,mmap,copy_file_range,sendfile,splice,vmsplice,io_uring_setup,io_submit,ioctl,"
    "chdir,fchdir,chroot,clone,clone3,fork,vfork"
)
PROCESSES = ("clone", "clone3", "fork", "vfork")
ALWAYS_KEPT = {*PROCESSES, "io_uring_setup", "io_submit", "chdir", "fchdir", "chroot", "sync"}
"""Calls that matter although they do not name the traced directory."""


class CannotFollow(Exception):
    """The writer did something the trace cannot be turned into effects for. Never skipped in silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that succeeded. `began_after` calls had finished when it began: a sync covers only those."""

    pid: int
    name: str
    args: tuple[str, ...]
    result: str
    began_after: int


@cache
def why_not() -> str:
    """Why nothing can be traced here, or an empty string."""
    if shutil.which("strace") is None:
        return "the program strace is not installed"
    tried = subprocess.run(["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "true"], capture_output=True, text=True)
    return f"strace does not work here: {tried.stderr.strip()[-200:]}" if tried.returncode else ""


def record(command: Sequence[str], log: Path, *, env: dict[str, str] | None = None, timeout_s: float = 60) -> str:
    """Run `command` under strace; gives back what it printed. A writer that fails is an error.

    Strings come as hex, so that quoting cannot mislead the parser. Failed calls are kept in the log: strace
    hides the beginning of a long call otherwise. No faults are injected: seccomp switches parts of that off.
    """
    options = ["-f", "--seccomp-bpf", "-q", "-a", "1", "-y", "-xx", "-s", str(STRING_LIMIT_BYTES)]
    strace = ["strace", *options, "-e", "signal=none", "-e", f"trace={TRACED}", "-o", str(log)]
    done = subprocess.run([*strace, *command], env=env, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode:
        raise RuntimeError(f"the writer ended with {done.returncode} under strace:\n{done.stderr[-4000:]}")
    return done.stdout


def unhex(text: str) -> bytes:
    return bytes.fromhex(text.strip('"').replace("\\x", ""))


def split_arguments(text: str) -> tuple[str, ...]:
    """Arguments at depth 0. Strings and paths are hex, so neither holds a bracket or a comma."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return tuple(parts)


def whole_lines(log: Path) -> Iterator[tuple[int, str, int]]:
    """(process, text of the call, number of calls finished when it began), in the order they finished."""
    waiting: dict[int, tuple[str, int]] = {}
    finished = 0
    with log.open(encoding="latin-1") as lines:
        for line in lines:
            number, _, text = line.rstrip("\n").partition(" ")
            pid, text = int(number), text.strip()
            if text.endswith("<unfinished ...>"):
                waiting[pid] = (text.removesuffix("<unfinished ...>").rstrip(), finished)
                continue
            began_after = finished
            if resumed := re.match(r"<\.\.\. \w+ resumed>", text):
                head, began_after = waiting.pop(pid)
                text = head + text[resumed.end() :]
            finished += 1
            yield pid, text, began_after


def read_calls(log: Path, root: Path) -> list[Call]:
    """The successful calls that concern `root`, or may.

    `began_after` is renumbered to count the calls in this list only.
    """
    needle = "".join(f"\\x{byte:02x}" for byte in str(root).encode())
    calls: list[Call] = []
    kept_before: list[int] = []  # for each finished line: how many calls had been kept when it came
    for pid, text, began_after in whole_lines(log):
        kept_before.append(len(calls))
        head, _, result = text.rpartition(" = ")  # no string holds " = ": all are hex
        head = head.rstrip()
        if not head.endswith(")") or result.startswith(("-1", "?")):
            continue
        name, _, arguments = head[:-1].partition("(")
        if not (needle in text or name in ALWAYS_KEPT or (name.startswith("write") and arguments.startswith("1<"))):
            continue
        began = kept_before[began_after]
        calls.append(Call(pid=pid, name=name, args=split_arguments(arguments), result=result, began_after=began))
    return calls
