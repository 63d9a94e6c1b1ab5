"""What every test gets: a teardown that fails on anything left behind, and the fork server.

Warnings are errors by pyproject.toml.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forkserver
from tests.forkserver import ForkServer

# An agent whose trainer has ended is allowed to finish what it is writing.
GRACE_S = 3.0
_SHARED_MEMORY = re.compile(r"torch_|psm_|sem\.|stepfast")
_LOADER_MEMORY = re.compile(r"torch_(\d+)_")


def pytest_configure() -> None:
    # Started in the background, a shell has Ctrl-C ignored, and every child inherits that: tests send it on purpose.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Orphans of children that a test started by itself become ours, so that the teardown sees them.
    forkserver.become_subreaper()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compares threads, processes, shared memory and open files before and after the test."""
    threads, processes, files, memory = set(threading.enumerate()), living(), open_files(), shared_memory()
    yield
    left = [
        *left_threads(threads),
        *left_processes(processes),
        *left_files(files),
        *left_memory(memory),
    ]
    if left:
        pytest.fail(f"{request.node.name} left behind: " + "; ".join(left), pytrace=False)


def left_threads(before: set[threading.Thread]) -> list[str]:
    new = [thread for thread in threading.enumerate() if thread not in before]
    for thread in new:
        thread.join(GRACE_S)
    return [f"thread {thread.name!r}" for thread in new if thread.is_alive()]


def living() -> set[int]:
    return {pid for pid in forkserver.children_of(os.getpid(), recursive=True) if state(pid) not in ("Z", "X", "")}


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def left_processes(before: set[int]) -> list[str]:
    left = []
    for pid in living() - before:
        command = command_of(pid)
        if not forkserver.wait_gone(pid, GRACE_S):
            os.kill(pid, 9)
            left.append(f"process {pid} ({command})")
    return left


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "ended"


def open_files() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor that listed the folder
    return found


def left_files(before: dict[int, str]) -> list[str]:
    def new() -> list[str]:
        return [f"file {fd} -> {target}" for fd, target in open_files().items() if before.get(fd) != target]

    if new():
        gc.collect()  # an object in a cycle that waits for the collector is no leak
    return new()


def shared_memory() -> set[str]:
    """Entries that torch, multiprocessing or Stepfast make. Others may be a folder of another test run."""
    if not os.path.isdir("/dev/shm"):
        return set()
    return {name for name in os.listdir("/dev/shm") if _SHARED_MEMORY.match(name)}


def left_memory(before: set[str]) -> list[str]:
    """New entries. One that names a living process is left to that process."""
    left = []
    for name in shared_memory() - before:
        owner = _LOADER_MEMORY.match(name)
        if not (owner and state(int(owner[1]))):
            left.append(f"shared memory {name}")
    return left
