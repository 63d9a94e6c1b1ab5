"""The teardown of every test notices what it is there to notice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import conftest


def test_a_thread_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "GRACE_S", 0.01)
    stop = threading.Event()
    before = set(threading.enumerate())
    thread = threading.Thread(target=stop.wait, name="left over")
    thread.start()
    assert conftest.left_threads(before) == ["thread 'left over'"]
    stop.set()
    thread.join()
    assert conftest.left_threads(before) == []


def test_a_process_is_noticed_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "GRACE_S", 0.01)
    before = conftest.living()
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    (left,) = conftest.left_processes(before)
    assert left.startswith(f"process {process.pid} (")
    assert process.wait(10) == -9


def test_an_open_file_is_noticed(tmp_path: Path) -> None:
    before = conftest.open_files()
    fd = os.open(tmp_path / "left", os.O_CREAT | os.O_WRONLY)
    assert conftest.left_files(before) == [f"file {fd} -> {tmp_path / 'left'}"]
    os.close(fd)
    assert conftest.left_files(before) == []


def test_shared_memory_is_noticed() -> None:
    before = conftest.shared_memory()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone, alive = f"torch_{dead.pid}_1", f"torch_{os.getpid()}_1"
    for name in (gone, alive):
        Path("/dev/shm", name).touch()
    try:
        assert f"shared memory {gone}" in conftest.left_memory(before)
        assert f"shared memory {alive}" not in conftest.left_memory(before)
    finally:
        for name in (gone, alive):
            Path("/dev/shm", name).unlink()
