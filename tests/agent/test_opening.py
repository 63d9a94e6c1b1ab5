"""Every answer to Open: opened, and each refusal by name."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stepfast.core.errors import RunHeld
from stepfast.files.locks import RunLock
from stepfast.store.run_directory import RunDirectory
from stepfast.wire.channel import ChannelClosed
from stepfast.wire.messages import Committed, Free, Opened, Refused
from tests.agent.conftest import Start
from tests.agent.scene import events, lay_out, wait_gone

pytestmark = pytest.mark.slow


def test_a_run_is_made_then_opened_again(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "a" / "run"
    one = start()
    first = one.open(path)
    assert (first.fresh, first.moved_to, first.attempt) == (True, None, 1)
    assert path.stat().st_mode & 0o777 == 0o700
    assert one.bye() == 0
    two = start()
    second = two.open(path)
    assert (second.run_id, second.fresh, second.attempt) == (first.run_id, True, 2)
    two.reserve(1 << 20)
    two.send(lay_out(1, {"loop.json": b"{}"}, run_id=first.run_id))
    two.expect(Committed)
    assert two.bye() == 0
    three = start()
    assert three.open(path, "require").fresh is False
    assert three.bye("done") == 0
    kinds = [event["event"] for event in events(path)]
    assert kinds == ["opened", "closed", "opened", "commit", "closed", "opened", "closed"]
    assert events(path)[-1]["reason"] == "done"


def test_require_without_a_checkpoint_is_refused_and_makes_nothing(start: Start, tmp_path: Path) -> None:
    refused = start().ask_open(tmp_path / "run", "require")
    assert isinstance(refused, Refused)
    assert refused.code == "no-checkpoint"
    assert str(tmp_path / "run") in refused.message
    assert not (tmp_path / "run").exists()
    one = start()
    one.open(tmp_path / "run")
    one.bye()
    refused = start().ask_open(tmp_path / "run", "require")
    assert isinstance(refused, Refused)
    assert refused.code == "no-checkpoint"


def test_fresh_moves_the_old_run_and_deletes_nothing(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run"
    one = start()
    first = one.open(path, "fresh")
    assert first.moved_to is None
    one.reserve(1 << 20)
    one.send(lay_out(7, {"loop.json": b"{}"}, run_id=first.run_id))
    one.expect(Committed)
    one.bye()
    moved = []
    for _ in range(2):  # within one second, so the names must not collide
        two = start()
        second = two.open(path, "fresh")
        assert second.fresh
        assert second.moved_to is not None
        moved.append(second.moved_to)
        two.bye()
    assert moved[0].startswith(f"{path}.old-")
    assert RunDirectory.open(moved[0]).run_id == first.run_id
    assert RunDirectory.open(moved[0]).steps() == [7]
    assert len({first.run_id, *(RunDirectory.open(one).run_id for one in moved), second.run_id}) == 3


@pytest.mark.parametrize(
    ("what", "code"),
    [("file", "not-a-run"), ("folder", "not-a-run"), ("newer", "format-too-new"), ("torn", "damaged")],
)
def test_a_path_that_is_no_run_of_ours_is_refused_untouched(start: Start, tmp_path: Path, what: str, code: str) -> None:
    path = tmp_path / "run"
    if what == "file":
        path.write_text("mine")
    else:
        path.mkdir()
        (path / ("thesis.txt" if what == "folder" else "stepfast.json")).write_text(
            json.dumps({"format": 99, "run_id": "x"}) if what == "newer" else "mine"
        )
    before = sorted(path.rglob("*"))
    one = start()
    refused = one.ask_open(path)
    assert isinstance(refused, Refused)
    assert refused.code == code
    assert str(path) in refused.message
    if what == "newer":
        assert "99" in refused.message
    assert sorted(path.rglob("*")) == before
    assert one.process.wait(10) == 0


@pytest.mark.parametrize("mode", ["auto", "require", "fresh"])
def test_a_run_in_use_is_refused_and_the_holder_is_named(start: Start, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "run"
    one = start()
    opened = one.open(path)
    one.reserve(1 << 20)
    refused = start().ask_open(path, mode)  # type: ignore[arg-type]
    assert isinstance(refused, Refused)
    assert refused.code == RunHeld.code
    for word in (str(path), f"process {os.getpid()}", socket.gethostname(), "train.py", "since 20"):
        assert word in refused.message
    assert refused.hint
    one.send(lay_out(3, {"loop.json": b"{}"}, run_id=opened.run_id))  # the first is not disturbed
    assert one.expect(Committed).step == 3
    assert not list(tmp_path.glob("run.old*"))
    assert one.bye() == 0
    assert RunLock(path).holder() is None


def test_who_comes_while_last_words_are_written_waits_for_them(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run"
    mortal = subprocess.Popen([sys.executable, "-m", "tests.agent.scene", str(path), "plain"], stdout=subprocess.PIPE)
    with mortal:
        assert mortal.stdout is not None
        agent = json.loads(mortal.stdout.readline())["agent"]
        mortal.kill()
        mortal.wait()
        # The agent is stopped, the trainer dead: the lock is held by somebody who will let go.
        two = start()
        with pytest.raises(TimeoutError):
            two.channel.recv(0.01)
        from stepfast.wire.messages import Open

        two.channel.send(
            Open(
                path=str(path),
                mode="require",
                script="b.py",
                trainer_pid=os.getpid(),
                host=socket.gethostname(),
            )
        )
        with pytest.raises(TimeoutError):
            two.channel.recv(0.5)
        os.kill(agent, signal.SIGCONT)
        opened = two.channel.recv(10)
        assert isinstance(opened, Opened)
        assert (opened.fresh, opened.attempt) == (False, 2)
        assert RunDirectory.open(path).steps() == [10, 20]
        assert wait_gone(agent)
        two.bye()


def test_a_trainer_that_goes_before_it_asked_leaves_nothing(start: Start, tmp_path: Path) -> None:
    one = start()
    one.channel.close()
    assert one.process.wait(10) == 0


def test_anything_but_open_at_first_is_not_answered(start: Start) -> None:
    one = start()
    one.channel.send(Free(slot=0))
    with pytest.raises(ChannelClosed):
        one.channel.recv(10)
    assert one.process.wait(10) == 0
