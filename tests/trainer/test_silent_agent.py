"""An agent that is slow, stopped or sent what it cannot take: named failures, no hang, nothing cut off."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from stepfast.core.errors import StateNotStorable
from stepfast.store.run_directory import RunDirectory
from stepfast.trainer import agent_process
from stepfast.trainer.agent_process import AgentProcess, AgentSilent
from stepfast.wire.channel import Channel
from stepfast.wire.messages import Committed, Drained, Failed, Free, Message, Request
from tests.trainer import scene
from tests.trainer.conftest import Said


def test_saves_that_the_manifest_refuses_fail_each_in_no_time(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_process, "SLOT_DEADLINE_S", 5.0)
    script = scene.build()
    run = script.run(tmp_path / "run", save_steps=1)
    assert run._keep is not None
    run._keep.saver.facts = {**run._keep.saver.facts, "hyperparameters": {"bad": "\udc80"}}
    began = time.monotonic()
    with pytest.raises(StateNotStorable, match="surrogate"):
        scene.train(run, script)
    assert time.monotonic() - began < 4.0
    assert len(said.with_words("the save of step", "surrogate")) >= 3


def test_a_stopped_agent_costs_one_deadline(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_process, "SLOT_DEADLINE_S", 0.5)
    monkeypatch.setattr(agent_process, "SEND_DEADLINE_S", 0.5)
    script = scene.build()
    run = script.run(tmp_path / "run", save_steps=1)
    assert run._keep is not None
    agent = run._keep.saver.agent.pid
    began = 0.0
    for epoch in run.epochs():
        for batch in epoch:
            scene.do_step(run, script, batch)
            if run.step == 2:
                os.kill(agent, signal.SIGSTOP)
                began = time.monotonic()
            elif run.step == 9:
                assert time.monotonic() - began < 2.0
                os.kill(agent, signal.SIGCONT)
        scene.tail(run, epoch)
    assert len(said.with_words("the save of step", "failed")) == 1
    assert RunDirectory.open(tmp_path / "run").steps()[-1] == scene.STEPS


def test_no_raw_error_comes_out_of_a_full_channel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_process, "SEND_DEADLINE_S", 0.3)
    agent = AgentProcess(path=str(tmp_path / "run"), mode="auto", script="\udc80.py", keep_newest=1)
    agent.wait_opened()
    with pytest.raises(StateNotStorable, match="a frame holds"):
        agent.event("big", text="x" * (17 << 20))
    with pytest.raises(StateNotStorable):
        agent.event("odd", text="\udc80")
    os.kill(agent.pid, signal.SIGSTOP)
    with pytest.raises(AgentSilent):
        agent.event("big", text="x" * (8 << 20))
    began = time.monotonic()
    with pytest.raises(AgentSilent):
        agent.event("small")
    with pytest.raises(AgentSilent):
        agent.drain(0.1, lambda message: None)
    assert time.monotonic() - began < 0.25
    os.kill(agent.pid, signal.SIGCONT)
    agent.drain(10.0, lambda message: None)
    agent.close("done", wait_s=10.0, say=print)


def test_goodbye_does_not_kill_an_agent_that_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_process, "QUIET_WAIT_S", 0.2)
    path = tmp_path / "run"
    agent = AgentProcess(path=str(path), mode="auto", script="s.py", keep_newest=1)
    agent.wait_opened()
    said: list[str] = []
    os.kill(agent.pid, signal.SIGSTOP)  # a disk that is slow
    agent.event("last-words")
    agent.close("done", wait_s=0.5, say=said.append)
    assert said == ["waiting for the checkpoint to be durable"]
    os.kill(agent.pid, signal.SIGCONT)
    again = AgentProcess(path=str(path), mode="auto", script="s.py", keep_newest=1)  # waits for the lock
    again.wait_opened()
    assert b"last-words" in (path / "ledger.jsonl").read_bytes()
    began = time.monotonic()
    again.close("stopped now", wait_s=0.0, say=said.append)
    assert time.monotonic() - began < 0.2
    agent_process._wait_for_earlier(str(path))


def fake(monkeypatch: pytest.MonkeyPatch) -> tuple[AgentProcess, Channel]:
    """An AgentProcess whose agent is this test."""
    ours, theirs = socket.socketpair()
    agent = AgentProcess.__new__(AgentProcess)
    values: dict[str, Any] = {"_channel": Channel(ours), "slots": [], "_free": set(), "_kept": [], "_is_asking": False}
    for name, value in values.items():
        setattr(agent, name, value)
    return agent, Channel(theirs)


@pytest.mark.parametrize("how", ["poll", "drain", "closed"])
def test_what_comes_while_a_slot_is_waited_for_reaches_its_reader(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    agent, other = fake(monkeypatch)
    told: list[Message] = [
        Failed(step=1, code="usage", message="m", hint=""),
        Request(id=1, what="save", name=None),
        Committed(step=2, revision=0, k1_s=0, bytes_written=0, manifest_sha256="", linked_files=[], tidied=[]),
    ]
    for message in (*told, Free(slot=0)):
        other.send(message)
    agent._free.clear()
    agent._wait(lambda m: isinstance(m, Free), 1.0, "waits")
    if how == "drain":
        monkeypatch.setattr(time, "monotonic_ns", lambda: 7)
        other.send(Drained(id=7))
        got: list[Message] = []
        agent.drain(1.0, got.append)
    else:
        if how == "closed":
            other.close()
        got = agent.poll()
    assert got == told
    other.close()
    agent._channel.close()


def test_two_names_at_one_boundary_are_two_tags(tmp_path: Path) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run", save_steps=0)
    for epoch in run.epochs():
        for batch in epoch:
            scene.do_step(run, script, batch)
            if run.step == 2:
                run.save("best")
                run.save("paper")
    tags = RunDirectory.open(tmp_path / "run").tags()
    assert tags["best"] == tags["paper"]
