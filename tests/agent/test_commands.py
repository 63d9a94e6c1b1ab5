"""Commands by the run's socket: a save that was asked for, status, and those who do not belong there."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

import pytest

from stepfast.store.run_directory import RunDirectory
from stepfast.wire.channel import ChannelClosed
from stepfast.wire.messages import (
    Ask,
    Committed,
    Done,
    Failed,
    Free,
    Refused,
    Request,
    Reserve,
    Standing,
    Status,
)
from tests.agent.conftest import Start
from tests.agent.scene import WAIT_S, Trainer, ask, command, lay_out

pytestmark = pytest.mark.slow


@pytest.fixture
def trainer(start: Start, tmp_path: Path) -> Trainer:
    one = start()
    one.open(tmp_path / "run")
    one.reserve(1 << 20)
    return one


@pytest.mark.parametrize(("what", "name"), [("save", None), ("save", "before-lunch"), ("stop", None)])
def test_a_request_is_done_when_its_save_is_durable(
    trainer: Trainer, tmp_path: Path, what: str, name: str | None
) -> None:
    path = tmp_path / "run"
    asking = command(path)
    asking.send(Ask(what=what, name=name))  # type: ignore[arg-type]
    request = trainer.expect(Request)
    assert (request.what, request.name) == (what, name)
    trainer.send(lay_out(1, {"loop.json": b"1"}, run_id=trainer.run_id))  # a save of another reason is no answer
    trainer.expect(Committed)
    assert asking.poll() == []
    trainer.send(lay_out(2, {"loop.json": b"2"}, run_id=trainer.run_id, name=name), wanted_by=[request.id])
    done = asking.recv(WAIT_S)
    assert done == Done(step=2, path=str(path / "checkpoints" / "step-00000002"))
    assert RunDirectory.open(path).resolve("latest" if name is None else name) == 2
    with pytest.raises(ChannelClosed):
        asking.recv(WAIT_S)
    asking.close()


def test_two_requests_can_be_answered_by_one_save(trainer: Trainer, tmp_path: Path) -> None:
    asking = [command(tmp_path / "run") for _ in range(2)]
    for one in asking:
        one.send(Ask(what="save"))
    ids = [trainer.expect(Request).id for _ in asking]
    assert len(set(ids)) == 2
    trainer.send(lay_out(3, {"loop.json": b"1"}, run_id=trainer.run_id), wanted_by=ids)
    for one in asking:
        answer = one.recv(WAIT_S)
        assert isinstance(answer, Done)
        one.close()


def test_a_save_that_fails_is_told_to_who_asked(trainer: Trainer, tmp_path: Path) -> None:
    asking = command(tmp_path / "run")
    asking.send(Ask(what="save"))
    request = trainer.expect(Request)
    bad = lay_out(1, {"loop.json": b"1"}, run_id=trainer.run_id)
    bad.spans.clear()
    trainer.send(bad, wanted_by=[request.id])
    failed = trainer.expect(Failed)
    assert asking.recv(WAIT_S) == Refused(code=failed.code, message=failed.message, hint=failed.hint)
    asking.close()


def test_a_trainer_that_leaves_refuses_what_is_waiting(trainer: Trainer, tmp_path: Path) -> None:
    asking = command(tmp_path / "run")
    asking.send(Ask(what="stop"))
    trainer.expect(Request)
    trainer.bye()
    answer = asking.recv(WAIT_S)
    assert isinstance(answer, Refused)
    assert "has left" in answer.message
    asking.close()


def test_a_request_has_a_deadline(trainer: Trainer, tmp_path: Path) -> None:
    answer = ask(tmp_path / "run", Ask(what="save", timeout_s=0.05))
    assert isinstance(answer, Refused)
    assert "in time" in answer.message
    # The request stands; its answer is nobody's.
    request = trainer.expect(Request)
    trainer.send(lay_out(1, {"loop.json": b"1"}, run_id=trainer.run_id), wanted_by=[request.id])
    assert trainer.expect(Committed).step == 1


def test_status_says_where_the_run_stands(trainer: Trainer, tmp_path: Path) -> None:
    path = tmp_path / "run"
    standing = ask(path, Status())
    assert isinstance(standing, Standing)
    assert (standing.run_id, standing.step, standing.waiting) == (trainer.run_id, None, 0)
    assert (standing.trainer_pid, standing.agent_pid) == (os.getpid(), trainer.process.pid)
    assert (standing.host, standing.script) == (socket.gethostname(), "train.py")
    assert standing.since.startswith("20")
    trainer.send(lay_out(8, {"loop.json": b"1"}, run_id=trainer.run_id))
    trainer.expect(Committed)
    standing = ask(path, Status())
    assert isinstance(standing, Standing)
    assert (standing.step, standing.waiting) == (8, 0)


def test_no_more_than_sixteen_requests_wait(trainer: Trainer, tmp_path: Path) -> None:
    for _ in range(16):
        one = command(tmp_path / "run")
        one.send(Ask(what="save"))
        trainer.expect(Request)
        one.close()  # gone, but its request stands
    answer = ask(tmp_path / "run", Ask(what="save"))
    assert isinstance(answer, Refused)
    assert "16 requests" in answer.message


@pytest.mark.parametrize("what", ["too long", "garbage", "a trainer's message", "two questions"])
def test_who_does_not_speak_the_protocol_is_cut_off_and_harms_nobody(
    trainer: Trainer, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "run"
    stranger = command(path)
    if what == "too long":
        stranger._sock.send(struct.pack("<I", 0xFFFFFFFF))
    elif what == "garbage":
        stranger._sock.send(b"GET / HTTP/1.1\r\n\r\n")
    elif what == "a trainer's message":
        stranger.send(Reserve(sizes=[4096]))
    else:
        stranger.send(Ask(what="save"))
        stranger.send(Free(slot=0))
    with pytest.raises(ChannelClosed):
        stranger.recv(WAIT_S)
    stranger.close()
    assert isinstance(ask(path, Status()), Standing)
    trainer.send(lay_out(1, {"loop.json": b"1"}, run_id=trainer.run_id))
    assert trainer.expect(Committed).step == 1


def test_a_slow_question_is_cut_off_and_seventeen_connections_are_one_too_many(
    trainer: Trainer, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    idle = [command(path) for _ in range(16)]
    started = time.monotonic()
    one_more = command(path)
    with pytest.raises(ChannelClosed):
        one_more.recv(WAIT_S)
    assert time.monotonic() - started < 2
    one_more.close()
    for one in idle:
        one._sock.send(b"\x05")  # a beginning, and nothing after it
    for one in idle:
        with pytest.raises(ChannelClosed):
            one.recv(WAIT_S)
        one.close()
    assert 2 < time.monotonic() - started < 10
    assert isinstance(ask(path, Status()), Standing)
