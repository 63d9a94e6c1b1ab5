"""Each death of the message page: what is on disk afterwards, and that nobody lives on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepfast.files.locks import RunLock
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory
from stepfast.wire.channel import ChannelClosed
from stepfast.wire.messages import Ask, Committed, Drain, Free, Refused, Request
from tests.agent.conftest import Start
from tests.agent.scene import WAIT_S, command, events, lay_out, wait_gone

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("manner", ["plain", "half", "worker"])
def test_what_a_killed_trainer_has_sent_is_committed(tmp_path: Path, manner: str) -> None:
    """The agent is stopped when the snapshots are sent, so it reads them only after the trainer's death."""
    path = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.agent.scene", str(path), manner],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as trainer:
        assert trainer.stdout is not None
        agent = json.loads(trainer.stdout.readline())["agent"]
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait()
        assert RunDirectory.open(path).steps() == []
        os.kill(agent, signal.SIGCONT)
        try:
            assert wait_gone(agent), "the agent outlived its trainer"
        finally:
            if manner == "worker":
                os.killpg(trainer.pid, signal.SIGKILL)  # what is left of the trainer's group: the worker
    run = RunDirectory.open(path)
    assert run.steps() == [10, 20]
    for step in (10, 20):
        assert CheckpointReader(run, step).verify() == []
        raw = (run.checkpoint_path(step) / "model.safetensors").read_bytes()
        assert raw.endswith(bytes([step]) * 70_000)
    kinds = [event["event"] for event in events(path)]
    assert kinds == ["opened", "commit", "commit", "trainer-died"]
    assert RunLock(path).holder() is None
    assert not (path / "agent.sock").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_for_the_whole_job_do_not_end_the_agent(start: Start, tmp_path: Path, number: int) -> None:
    one = start()
    one.open(tmp_path / "run")
    one.reserve(1 << 20)
    os.kill(one.process.pid, number)
    one.send(lay_out(1, {"loop.json": b"1"}, run_id=one.run_id))
    assert one.expect(Committed).step == 1
    assert one.bye() == 0


def test_bye_writes_what_is_waiting(start: Start, tmp_path: Path) -> None:
    one = start()
    one.open(tmp_path / "run")
    one.reserve(1 << 20, 1 << 20)
    for number in (0, 1):
        one.send(lay_out(number + 1, {"model.safetensors": {"w": bytes(900_000)}}, run_id=one.run_id), number)
    assert one.bye("enough") == 0
    assert RunDirectory.open(tmp_path / "run").steps() == [1, 2]
    assert events(tmp_path / "run")[-1]["reason"] == "enough"


def test_a_channel_closed_without_a_word_is_an_end_too(start: Start, tmp_path: Path) -> None:
    one = start()
    one.open(tmp_path / "run")
    one.reserve(1 << 20)
    one.send(lay_out(1, {"loop.json": b"1"}, run_id=one.run_id))
    assert one.end() == 0
    assert RunDirectory.open(tmp_path / "run").steps() == [1]
    assert events(tmp_path / "run")[-1]["event"] == "closed"


def test_a_message_that_is_not_the_trainers_ends_it(start: Start, tmp_path: Path) -> None:
    one = start()
    one.open(tmp_path / "run")
    one.channel.send(Free(slot=0))
    assert one.process.wait(WAIT_S) == 0
    assert "Free" in events(tmp_path / "run")[-1]["reason"]


def test_the_trainer_sees_its_agent_die_and_the_next_one_clears_up(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run"
    one = start()
    one.open(path)
    one.reserve(1 << 20)
    one.send(lay_out(1, {"loop.json": b"1"}, run_id=one.run_id))
    one.expect(Committed)
    one.process.kill()
    with pytest.raises(ChannelClosed):
        one.channel.recv(WAIT_S)
    one.slots[0].view(0, 4)[:] = b"mine"  # the slots are not taken from under the trainer
    with pytest.raises(ChannelClosed):
        one.channel.send(Drain(id=1))
    left = path / "checkpoints" / ".staging-step-00000002-1-1-0"
    left.mkdir()
    (left / "half").write_bytes(b"half")
    two = start()
    opened = two.open(path)
    assert (opened.attempt, opened.fresh, opened.run_id) == (2, False, one.run_id)
    assert os.listdir(path / "checkpoints") == ["step-00000001"]
    assert two.bye() == 0


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_directory_that_vanishes_ends_the_agent_loudly(start: Start, tmp_path: Path, how: str) -> None:
    path = tmp_path / "run"
    one = start()
    one.open(path)
    asking = command(path)
    asking.send(Ask(what="save"))
    one.expect(Request)
    if how == "removed":
        shutil.rmtree(path)
    else:
        path.rename(tmp_path / "elsewhere")
    refused = one.expect(Refused)
    assert refused.code == "not-a-run"
    assert str(path) in refused.message
    assert asking.recv(WAIT_S) == refused
    asking.close()
    assert one.process.wait(WAIT_S) == 1
    assert not path.exists(), "the agent made something where the run was"


def test_the_agent_inherits_its_channel_and_nothing_else(start: Start, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        one = start()
        one.open(tmp_path / "run")
        one.reserve(4096)
        one.send(lay_out(1, {"loop.json": b"1"}, run_id=one.run_id))
        one.expect(Committed)
        proc = Path(f"/proc/{one.process.pid}")
        held = {fd.name: os.readlink(fd) for fd in (proc / "fd").iterdir()}
        assert held["0"] == "/dev/null"
        assert held["1"] == held["2"] == str(tmp_path / "run" / "agent.log")
        own = ("socket:", "anon_inode:", "/memfd:stepfast-slot", str(tmp_path / "run"), "/dev/null")
        assert [target for target in held.values() if not target.startswith(own)] == []
        sockets = [target for target in held.values() if target.startswith("socket:")]
        assert len(sockets) == 2, "the channel and the listening socket"
        assert os.getsid(one.process.pid) == one.process.pid
        assert "libtorch" not in (proc / "maps").read_text()
        assert one.bye() == 0
    finally:
        os.close(writer)
        os.close(reader)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_may_read_the_run_whatever_the_umask(start: Start, tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        one = start()
    finally:
        os.umask(old)
    one.open(tmp_path / "run")
    one.reserve(4096)
    one.send(lay_out(1, {"loop.json": b"1"}, run_id=one.run_id))
    one.expect(Committed)
    modes = {
        str(found.relative_to(tmp_path)): oct(found.stat().st_mode & 0o777)
        for found in (tmp_path / "run", *(tmp_path / "run").rglob("*"))
    }
    assert modes["run"] == "0o700"
    for name in ("lock", "agent.log", "agent.sock", "ledger.jsonl"):
        assert modes[f"run/{name}"] == "0o600", (name, modes)
    assert one.bye() == 0


def test_an_agent_ends_when_it_is_done_not_when_it_looks_round(start: Start, tmp_path: Path) -> None:
    """A wake-up that is missed costs the look every second, at the end of each training run."""
    took_s = 0.0
    for _ in range(6):
        one = start()
        one.open(tmp_path / "run")
        began = time.monotonic()
        one.bye()
        took_s += time.monotonic() - began
    assert took_s < 3.0, f"{took_s:.1f} s for 6 ends"
