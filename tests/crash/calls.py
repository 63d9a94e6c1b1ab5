"""What each system call does, told to the follower. Everything that cannot be followed is refused, loudly."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.crash.effects import History, Promise, Start
from tests.crash.follower import Follower, OpenFile, shown_path
from tests.crash.trace import PROCESSES, Call, CannotFollow, unhex


def on_open(f: Follower, call: Call) -> None:
    named = call.name in ("openat", "openat2")
    folder, path = (call.args[0], call.args[1]) if named else (None, call.args[0])
    flags = "O_WRONLY|O_CREAT|O_TRUNC" if call.name == "creat" else call.args[2 if named else 1]
    number = re.match(r"\d+", call.result)
    assert number is not None, call
    f.table(call.pid).pop(int(number[0]), None)
    place = f.place(call, folder, path)
    if place is None:
        return
    if "O_TMPFILE" in flags:
        raise CannotFollow("O_TMPFILE below the traced directory")
    node = f.at(place)
    if node in f.links:
        raise CannotFollow(f"a symbolic link was followed: {f.shown(place)}")
    if node is None:
        if "O_CREAT" not in flags:
            raise CannotFollow(f"{f.shown(place)} was opened but never seen being made")
        node = f.new()
        f.sizes[node] = 0
        f.rename(f"create {f.shown(place)}", (*place, node))
    elif "O_TRUNC" in flags and f.sizes.get(node):
        f.resize(node, 0)
    f.table(call.pid)[int(number[0])] = OpenFile(node, flags)


def on_close(f: Follower, call: Call) -> None:
    if number := re.match(r"\d+", call.args[0]):
        f.table(call.pid).pop(int(number[0]), None)


def on_dup(f: Follower, call: Call) -> None:
    if call.name == "fcntl" and "F_DUPFD" not in call.args[1]:
        return
    file, number = f.file(call, call.args[0]), re.match(r"\d+", call.result)
    if file is not None and number is not None:
        f.table(call.pid)[int(number[0])] = file


def on_write(f: Follower, call: Call) -> None:
    data = b"".join(unhex(text) for text in re.findall(r'"((?:\\x[0-9a-f]{2})*)"', ",".join(call.args[1:])))
    written = int(call.result)
    if len(data) < written:
        raise CannotFollow(f"one {call.name} of {written} bytes: more than strace was asked to keep")
    data = data[:written]
    file = f.file(call, call.args[0])
    if file is None:
        if call.name == "write" and call.args[0].startswith("1<"):
            *lines, f.printed = (f.printed + data).split(b"\n")  # a line counts when it is whole
            promised = [line[4:].decode() for line in lines if line.startswith(b"ACK ")]
            f.events += [(len(f.effects), Promise(text=text)) for text in promised]
        return
    if call.name == "pwritev2" and call.args[-1] != "0":
        raise CannotFollow(f"pwritev2 with flags {call.args[-1]}")
    if call.name.startswith("pw"):
        f.write(file, int(call.args[3]), data)
    else:
        advance(f, file, data)


def advance(f: Follower, file: OpenFile, data: bytes) -> None:
    offset = f.sizes[file.node] if "O_APPEND" in file.flags else file.position
    file.position = offset + len(data)
    f.write(file, offset, data)


def on_copy(f: Follower, call: Call) -> None:
    """copy_file_range and sendfile from a file below the root, or from a file outside that is still there."""
    source, target, at = (0, 2, 1) if call.name == "copy_file_range" else (1, 0, 2)
    to, come_from = f.file(call, call.args[target]), f.file(call, call.args[source])
    if call.name == "copy_file_range" and call.args[3] != "NULL":
        raise CannotFollow("copy_file_range to a given offset")
    given = re.match(r"\[(\d+)", call.args[at])
    if to is None:
        if come_from is not None and not given:
            come_from.position += int(call.result)
        return
    if come_from is None:
        raise CannotFollow(f"{call.name} from {shown_path(call.args[source])}, which is outside the traced directory")
    begin = int(given[1]) if given else come_from.position
    if not given:
        come_from.position += int(call.result)
    advance(f, to, f.content(come_from.node)[begin : begin + int(call.result)])


def on_lseek(f: Follower, call: Call) -> None:
    if (file := f.file(call, call.args[0])) is not None:
        file.position = int(call.result)


def on_size(f: Follower, call: Call) -> None:
    if call.name == "truncate":
        place = f.place(call, None, call.args[0])
        node = f.at(place) if place is not None else None
    else:
        file = f.file(call, call.args[0])
        node = file.node if file is not None else None
    if node is None:
        return
    if call.name != "fallocate":
        f.resize(node, int(call.args[1]))
    elif call.args[1] == "0":
        f.resize(node, max(f.sizes[node], int(call.args[2]) + int(call.args[3])))
    elif call.args[1] != "FALLOC_FL_KEEP_SIZE":
        raise CannotFollow(f"fallocate with mode {call.args[1]}")


def two_places(f: Follower, call: Call) -> tuple[tuple[int, str] | None, tuple[int, str] | None]:
    a = call.args
    if call.name in ("rename", "link"):
        return f.place(call, None, a[0]), f.place(call, None, a[1])
    return f.place(call, a[0], a[1]), f.place(call, a[2], a[3])


def on_rename(f: Follower, call: Call) -> None:
    old, new = two_places(f, call)
    if old is None and new is None:
        return
    if old is None or new is None:
        raise CannotFollow("a rename across the border of the traced directory")
    flags = call.args[4] if call.name == "renameat2" else ""
    if "RENAME_WHITEOUT" in flags:
        raise CannotFollow("RENAME_WHITEOUT")
    node, other = f.at(old), f.at(new)
    if node is None:
        raise CannotFollow(f"{f.shown(old)} was renamed but never seen being made")
    label = f"{'exchange' if 'RENAME_EXCHANGE' in flags else 'rename'} {f.shown(old)} -> {f.shown(new)}"
    if "RENAME_EXCHANGE" in flags:
        f.rename(label, (*old, other), (*new, node))
    elif node != other:  # two names of one file: rename does nothing
        f.rename(label, (*old, None), (*new, node))


def on_link(f: Follower, call: Call) -> None:
    old, new = two_places(f, call)
    if new is None:
        return
    node = f.at(old) if old is not None else None
    if old is None or node is None:
        raise CannotFollow("a hard link from outside the traced directory, or from a descriptor")
    f.rename(f"link {f.shown(old)} -> {f.shown(new)}", (*new, node))


def on_symlink(f: Follower, call: Call) -> None:
    place = f.place(call, None, call.args[1]) if call.name == "symlink" else f.place(call, call.args[1], call.args[2])
    if place is not None:
        node = f.new()
        f.links[node] = unhex(call.args[0])
        f.rename(f"symlink {f.shown(place)}", (*place, node))


def on_remove(f: Follower, call: Call) -> None:
    place = f.place(call, call.args[0], call.args[1]) if call.name == "unlinkat" else f.place(call, None, call.args[0])
    if place is not None:
        f.rename(f"remove {f.shown(place)}", (*place, None))


def on_mkdir(f: Follower, call: Call) -> None:
    place = f.place(call, call.args[0], call.args[1]) if call.name == "mkdirat" else f.place(call, None, call.args[0])
    if place is None:
        return
    node = f.new()
    f.folders[node] = {}
    f.rename(f"mkdir {f.shown(place)}", (*place, node))


def on_fsync(f: Follower, call: Call) -> None:
    if (file := f.file(call, call.args[0])) is not None:
        f.sync(file.node, f.covered(call))


def on_sync(f: Follower, call: Call) -> None:
    if call.name == "sync" or f.file(call, call.args[0]) is not None:
        f.sync(None, f.covered(call))


def on_mmap(f: Follower, call: Call) -> None:
    """A shared mapping may be written (at once, or after mprotect) if its file was opened for writing."""
    file = f.file(call, call.args[4])
    if file is not None and "MAP_SHARED" in call.args[3] and ("PROT_WRITE" in call.args[2] or "O_RDWR" in file.flags):
        raise CannotFollow(f"a writable shared mapping of {f.shown_node(file.node)}")


def on_chdir(f: Follower, call: Call) -> None:
    f.cwd = os.path.join(f.cwd, os.fsdecode(unhex(call.args[0])))


def on_clone(f: Follower, call: Call) -> None:
    f.table(int(call.result))  # inherits what is open now, if it has not run before


def on_ioctl(f: Follower, call: Call) -> None:
    if "FICLONE" in call.args[1]:
        raise CannotFollow(f"ioctl {call.args[1]}")


def refuse(f: Follower, call: Call) -> None:
    raise CannotFollow(f"the writer uses {call.name}")


HANDLERS: dict[str, Callable[[Follower, Call], None]] = {
    **dict.fromkeys(("open", "openat", "openat2", "creat"), on_open),
    "close": on_close,
    **dict.fromkeys(("dup", "dup2", "dup3", "fcntl"), on_dup),
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "pwritev2"), on_write),
    **dict.fromkeys(("copy_file_range", "sendfile"), on_copy),
    "lseek": on_lseek,
    **dict.fromkeys(("ftruncate", "truncate", "fallocate"), on_size),
    **dict.fromkeys(("rename", "renameat", "renameat2"), on_rename),
    **dict.fromkeys(("link", "linkat"), on_link),
    **dict.fromkeys(("symlink", "symlinkat"), on_symlink),
    **dict.fromkeys(("unlink", "unlinkat", "rmdir"), on_remove),
    **dict.fromkeys(("mkdir", "mkdirat"), on_mkdir),
    **dict.fromkeys(("fsync", "fdatasync"), on_fsync),
    **dict.fromkeys(("sync", "syncfs"), on_sync),
    "mmap": on_mmap,
    "chdir": on_chdir,
    **dict.fromkeys(PROCESSES, on_clone),
    "ioctl": on_ioctl,
    **dict.fromkeys(("splice", "vmsplice", "io_uring_setup", "io_submit"), refuse),
    **dict.fromkeys(("fchdir", "chroot", "mknod", "mknodat"), refuse),
}


def follow(calls: Sequence[Call], root: Path, start: Start, working_directory: Path) -> History:
    follower = Follower(root, start, working_directory)
    follower.find_children(calls)
    for call in calls:
        handler = HANDLERS.get(call.name)
        if handler is None:
            raise CannotFollow(f"{call.name} is recorded but not understood")
        handler(follower, call)
        follower.effects_after.append(len(follower.effects))
    return follower.history()
