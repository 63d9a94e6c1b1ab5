"""Opening what others may have put there, and the lock of the one writer."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from stepfast.core.errors import Damaged, NotARun
from stepfast.files import strict
from stepfast.files.locks import RunLock


def make_hostile(directory: Path) -> None:
    (directory / "real").write_bytes(b"12345")
    (directory / "link").symlink_to(directory / "real")
    (directory / "loop").symlink_to("loop")
    (directory / "dir").mkdir()
    os.mkfifo(directory / "fifo")
    with (directory / "huge").open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("name", ["link", "loop", "dir", "fifo", "huge", "..", ".", "", "../x", "a/b", "a\0b", "-x"])
def test_everything_but_a_plain_file_is_refused_without_waiting(tmp_path: Path, name: str) -> None:
    make_hostile(tmp_path)
    start = time.perf_counter()
    with pytest.raises(Damaged):
        strict.read_file(tmp_path, name, 1 << 20)
    with pytest.raises(Damaged):
        os.close(strict.open_file(tmp_path, name, 5))
    assert time.perf_counter() - start < 1


def test_socket_and_device_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(Damaged, match="regular"):
            strict.read_file(tmp_path, "socket", 10)
    with pytest.raises(Damaged, match="regular"):
        strict.read_file("/dev", "zero", 10)


def test_sizes_and_missing(tmp_path: Path) -> None:
    make_hostile(tmp_path)
    assert strict.read_file(tmp_path, "real", 5) == b"12345"
    with pytest.raises(Damaged, match="allowed"):
        strict.read_file(tmp_path, "real", 4)
    with pytest.raises(Damaged, match="must have 6"):
        strict.open_file(tmp_path, "real", 6)
    with pytest.raises(FileNotFoundError):
        strict.read_file(tmp_path, "none", 4)
    (tmp_path / "way").symlink_to(tmp_path)
    with pytest.raises(Damaged, match="symbolic link"):
        strict.read_file(tmp_path / "way", "real", 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_a_stranger_is_refused(tmp_path: Path) -> None:
    make_hostile(tmp_path)
    os.chown(tmp_path / "real", 65534, -1)
    with pytest.raises(Damaged, match="65534"):
        strict.read_file(tmp_path, "real", 5)
    os.chown(tmp_path, 65534, -1)
    assert strict.read_file(tmp_path, "real", 5) == b"12345"


def test_read_into_fills_many_views_and_names_an_early_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    fd = strict.open_file(tmp_path, "file", 100)
    try:
        parts = [memoryview(bytearray(size)) for size in (3, 0, 40, 1)]
        strict.read_into(fd, parts, 10, "file")
        assert b"".join(parts) == bytes(range(10, 54))
        with pytest.raises(Damaged, match="ends at byte 100"):
            strict.read_into(fd, [memoryview(bytearray(20))], 90, "file")
    finally:
        os.close(fd)


def test_one_holder(tmp_path: Path) -> None:
    one, two = RunLock(tmp_path), RunLock(tmp_path)
    assert one.holder() is None
    assert one.try_acquire({"pid": 1, "host": "a" * 1000})
    assert two.holder() == one.holder() == {"pid": 1, "host": "a" * 1000}
    assert not two.try_acquire({"pid": 2})
    one.release()
    assert two.holder() is None
    assert two.try_acquire({"pid": 2})
    assert one.holder() == {"pid": 2}
    two.release()
    two.release()
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_a_lock_that_is_a_trap(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "lock").symlink_to(victim)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "lock").mkdir()
    for name in ("a", "b"):
        with pytest.raises(Damaged):
            RunLock(tmp_path / name).try_acquire({})
    assert victim.read_bytes() == b"precious"


def test_a_run_that_was_moved_away_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    real = os.open

    def open_then_move(path: object, flags: int, mode: int = 0o777, **more: int) -> int:
        fd = real(path, flags, mode, **more)  # type: ignore[call-overload]
        if run.exists():
            run.rename(tmp_path / "moved")
        return int(fd)

    monkeypatch.setattr(os, "open", open_then_move)
    with pytest.raises(NotARun, match="moved"):
        RunLock(run).try_acquire({})
