"""save, stop, and looking at a run that trains right now; and what is said when nobody does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command, Living

pytestmark = pytest.mark.slow


def test_save_then_stop(stepfast: Command, living: Living) -> None:
    path = living.path
    saved = stepfast("save", path, "--name", "mine")
    assert saved.status == 0, saved.err
    checkpoint = Path(saved.out.strip())
    assert checkpoint.is_dir()
    assert f"kept as {path}@mine" in saved.err
    assert stepfast("show", f"{path}@mine", "--json").json["path"] == str(checkpoint)

    stopped = stepfast("stop", path)
    assert stopped.status == 0, stopped.err
    assert "the next start goes on there" in stopped.err
    assert "rm -r" in stopped.err
    assert living.child.wait(20) == 75
    assert Path(stopped.out.strip()).is_dir()
    assert stepfast("status", path, "--json").json["training"] is False


def test_status_and_doctor_of_a_living_run(stepfast: Command, living: Living) -> None:
    said = stepfast("status", living.path)
    assert said.status == 0
    assert f"process {living.child.pid} on " in said.out
    assert "a crash now would cost" in said.out
    found = stepfast("status", living.path, "--json").json
    assert found["training"] is True
    assert found["agent_answers"] is True
    assert found["holder"]["trainer_pid"] == living.child.pid
    assert found["finished_steps"] > 1
    assert "training" in stepfast("ls", living.path.parent).out
    doctor = stepfast("doctor", living.path)
    assert f"held by process {living.child.pid}" in doctor.out
    assert "which lives" in doctor.out


def test_a_killed_run_has_left_a_socket_that_nobody_answers(stepfast: Command, living: Living) -> None:
    import os
    import signal

    from stepfast.files.locks import RunLock
    from tests.forkserver import wait_gone

    holder = RunLock(living.path).holder()
    assert holder is not None
    os.kill(holder["pid"], signal.SIGKILL)
    living.child.kill()
    living.child.wait(20)
    assert wait_gone(holder["pid"], 20)
    assert (living.path / "agent.sock").exists()
    answer = stepfast("stop", living.path)
    assert answer.status == 1
    assert f"error: nobody trains in {living.path} on this machine" in answer.err


@pytest.mark.parametrize("command", ["save", "stop"])
def test_nobody_trains_there(stepfast: Command, finished: Path, command: str) -> None:
    answer = stepfast(command, finished)
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith(f"error: nobody trains in {finished} on this machine\n\nhint: ")
