"""Slots: shared, sealed, allocated at once, and refused in words where there is no room."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stepfast.core.errors import StorageFailed
from stepfast.core.words import BLOCK_BYTES
from stepfast.memory.room import available_bytes
from stepfast.memory.slot import Slot


def shared(size: int) -> tuple[Slot, Slot]:
    agent = Slot.allocate(size)
    return agent, Slot.attach(os.dup(agent.fd), agent.size)


def test_a_slot_made_ahead_waits_for_its_pages_at_the_first_look_and_at_the_end() -> None:
    agent = Slot.allocate(40 << 20)
    for look in (True, False):
        trainer = Slot.attach(os.dup(agent.fd), agent.size, ahead=True)
        if look:
            trainer.view(agent.size - 2, 2)[:] = b"ok"
        trainer.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "stepfast-slot"]
    assert bytes(agent.view(agent.size - 2, 2)) == b"ok"
    agent.close()


def test_both_sides_see_the_same_bytes() -> None:
    agent, trainer = shared(10_000)
    assert agent.size == 3 * BLOCK_BYTES
    trainer.view(BLOCK_BYTES, 5)[:] = b"hello"
    assert bytes(agent.view(BLOCK_BYTES, 5)) == b"hello"
    assert bytes(agent.view()) == bytes(BLOCK_BYTES) + b"hello" + bytes(2 * BLOCK_BYTES - 5)
    assert trainer.address % BLOCK_BYTES == 0
    with pytest.raises(TypeError, match="read-only"):
        agent.view(0, 1)[:] = b"x"
    for offset, size in ((-1, 2), (0, agent.size + 1), (agent.size, 1), (5, -1)):
        with pytest.raises(ValueError, match="outside"):
            agent.view(offset, size)
    agent.close()
    trainer.view(0, 1)[:] = b"x"  # the trainer's mapping outlives the agent
    trainer.close()
    trainer.close()


def test_the_memory_is_there_from_the_start_not_at_the_first_touch() -> None:
    agent = Slot.allocate(1 << 20)
    assert os.fstat(agent.fd).st_blocks * 512 == 1 << 20
    agent.close()


def test_nobody_can_change_the_size_under_the_other() -> None:
    agent, trainer = shared(8192)
    for size in (0, 4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(trainer.fd, size)
    assert os.fstat(agent.fd).st_size == 8192
    agent.close()
    trainer.close()


@pytest.mark.parametrize("kind", ["unsealed", "other size"])
def test_memory_that_is_not_what_was_announced_is_refused(kind: str) -> None:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.posix_fallocate(fd, 0, 8192)
    slot = Slot.allocate(8192)
    wrong, size = (fd, 8192) if kind == "unsealed" else (os.dup(slot.fd), 4096)
    with pytest.raises(StorageFailed, match="not sealed memory"):
        Slot.attach(wrong, size)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(wrong)  # attach owns it, also when it refuses
    if kind != "unsealed":
        os.close(fd)
    slot.close()


def test_no_room_is_an_error_in_words_not_a_signal_later() -> None:
    script = (
        "import resource;"
        "from stepfast.core.errors import StorageFailed;"
        "from stepfast.memory.slot import Slot;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20));"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "Slot.allocate(1 << 20).close();\n"
        "try: Slot.allocate(2 << 20)\n"
        "except StorageFailed as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "no room for 2,097,152 bytes of shared memory" in done.stdout
    assert "hint: free host memory" in done.stdout


def test_a_forked_worker_does_not_keep_the_memory() -> None:
    agent, trainer = shared(1 << 20)
    address = trainer.address
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with open("/proc/self/maps", encoding="ascii") as maps:
            os.write(writer, b"1" if any(line.startswith(f"{address:x}-") for line in maps) else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"0"
    with open("/proc/self/maps", encoding="ascii") as maps:
        assert any(line.startswith(f"{address:x}-") for line in maps), "the test looks for the wrong address"
    os.close(reader)
    os.close(writer)
    agent.close()
    trainer.close()


def test_room_is_the_tightest_of_host_and_groups(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    inner = cgroup / "job" / "step"
    inner.mkdir(parents=True)
    assert available_bytes(proc, cgroup) is None
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    assert available_bytes(proc, cgroup) == 4000 * 1024
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    assert available_bytes(proc, cgroup) == 4000 * 1024
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("100\n")
    (cgroup / "job" / "memory.max").write_text("1000000\n")
    (cgroup / "job" / "memory.current").write_text("900000\n")
    (cgroup / "job" / "memory.stat").write_text("anon 1\ninactive_file 50000\nactive_file 7\n")
    assert available_bytes(proc, cgroup) == 150_007


def test_room_here_is_known() -> None:
    room = available_bytes()
    assert room is not None
    assert 0 < room < 1 << 50
