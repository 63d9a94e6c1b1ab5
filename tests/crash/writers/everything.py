"""Touches a directory in every way the trace must be able to follow. Prints nothing of worth.

everything.py DIRECTORY
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import threading

BLOCK_BYTES = 4096
RENAME_EXCHANGE = 2
AT_FDCWD = -100


def direct(path: str) -> None:
    """O_DIRECT from aligned memory, the last block padded and cut off again."""
    import mmap

    memory = mmap.mmap(-1, 2 * BLOCK_BYTES)
    memory.write(b"d" * 5000)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    except OSError:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, 2 * BLOCK_BYTES)
    os.write(descriptor, memory)
    os.ftruncate(descriptor, 5000)
    os.fsync(descriptor)
    os.close(descriptor)


def shared_positions(folder: str) -> None:
    """Descriptors that were dup'ed or inherited by a child share one position; a second opening does not."""
    descriptor = os.open(f"{folder}/shared", os.O_RDWR | os.O_CREAT)
    twin, other = os.dup(descriptor), os.open(f"{folder}/shared", os.O_WRONLY)
    os.write(descriptor, b"first ")
    os.write(twin, b"second ")
    if not (child := os.fork()):
        os.write(descriptor, b"child ")
        os._exit(0)
    os.waitpid(child, 0)
    os.write(descriptor, b"third")
    os.write(other, b"FIRST")
    os.lseek(descriptor, 2, os.SEEK_END)
    os.writev(descriptor, [b"after ", b"a hole"])
    os.pwrite(twin, b"!", 3)
    for number in (descriptor, twin, other):
        os.close(number)


def threads(folder: str) -> None:
    def one(name: str) -> None:
        descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT)
        for _ in range(20):
            os.write(descriptor, name.encode() * 30)
            os.fsync(descriptor)
        os.close(descriptor)

    running = [threading.Thread(target=one, args=(f"thread-{number}",)) for number in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def names(root: str) -> None:
    os.mkdir(f"{root}/a")
    os.mkdir(f"{root}/b")
    folder = os.open(f"{root}/a", os.O_RDONLY | os.O_DIRECTORY)
    held = os.open("inside", os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=folder)
    os.link("inside", "linked", src_dir_fd=folder, dst_dir_fd=folder)
    os.rename(f"{root}/a", f"{root}/moved")
    os.mkdir("below", dir_fd=folder)
    os.unlink("inside", dir_fd=folder)
    os.write(held, b"seen through the other name")
    os.fsync(held)
    os.symlink("linked", f"{root}/moved/symbolic")
    renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    assert not renameat2(AT_FDCWD, f"{root}/moved".encode(), AT_FDCWD, f"{root}/b".encode(), RENAME_EXCHANGE)
    os.rmdir(f"{root}/moved")
    os.close(held)
    os.close(folder)


def contents(root: str) -> None:
    path = f"{root}/contents"
    with open(path, "wb") as file:
        file.write(b"written by the library " * 400)
    with open(path, "ab") as file:
        file.write(b"appended")
    with open(path, "r+b") as file:
        file.truncate(100)
    shutil.copyfile(path, f"{root}/copied")
    os.truncate(path, 50)
    with open(path, "rb") as source, open(f"{root}/ranged", "wb") as target:
        os.copy_file_range(source.fileno(), target.fileno(), 20, 5)
        os.copy_file_range(source.fileno(), target.fileno(), 20)
    with open(f"{root}/emptied", "wb") as file:
        file.write(b"soon gone")
    with open(f"{root}/emptied", "wb"):
        pass


def main(root: str) -> None:
    direct(f"{root}/direct")
    shared_positions(root)
    threads(root)
    names(root)
    contents(root)
    descriptor = os.open(f"{root}/old", os.O_WRONLY | os.O_APPEND)  # was there before
    os.write(descriptor, b" and new")
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1])
