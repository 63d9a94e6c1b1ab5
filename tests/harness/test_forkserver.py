"""The fork server: a child is like `python script.py`, and can be killed and waited for without a guess."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forkserver
from tests.forkserver import Child, ForkServer

SCRIPT = Path(__file__).parent / "scripts/every_way_to_end.py"
pytestmark = pytest.mark.slow


def facts(child: Child) -> dict[str, Any]:
    return {name: value for line in child.stdout.splitlines() for name, value in json.loads(line).items()}


@pytest.mark.parametrize("cold", [False, True])
def test_a_child_is_like_a_script_of_its_own(fork_server: ForkServer, tmp_path: Path, cold: bool) -> None:
    child = fork_server.start_script(SCRIPT, ["facts", "--n", "3"], {"MARKER": "x"}, tmp_path, cold=cold)
    assert child.wait(30) == 0, child.stderr
    seen = facts(child)
    assert seen["argv"] == [str(SCRIPT), "facts", "--n", "3"]
    assert seen["file"] == str(SCRIPT)
    assert seen["module"] == "__main__"
    assert seen["main"]
    assert seen["pid"] == seen["session"] == child.pid
    assert seen["cwd"] == str(tmp_path)
    assert seen["path"] == str(SCRIPT.parent)
    assert seen["marker"] == "x"
    assert seen["torch_threads"] == 1
    assert seen["threads"] == 1, "a pool of threads was started before the fork; children would hang in it"
    assert [fd for fd in seen["files"] if fd > 2][1:] == [], "the server's descriptors are in its child"
    assert seen["at_exit"] == "Here"


def test_children_draw_different_numbers(fork_server: ForkServer) -> None:
    children = [fork_server.start_script(SCRIPT, ["facts"]) for _ in range(2)]
    assert [child.wait(30) for child in children] == [0, 0]
    assert facts(children[0])["draw"] != facts(children[1])["draw"]


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(
    ("how", "status", "said"),
    [("raise", 1, "ValueError: as asked"), ("exit", 7, ""), ("exit-words", 1, "words"), ("thread", 0, "")],
)
def test_every_way_to_end(fork_server: ForkServer, how: str, status: int, said: str, cold: bool) -> None:
    child = fork_server.start_script(SCRIPT, [how], cold=cold)
    assert child.wait(30) == status
    assert said in child.stderr
    assert facts(child)["at_exit"] == "Here"
    assert how != "thread" or facts(child)["from_thread"] == "Here"


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(fork_server: ForkServer, sig: signal.Signals) -> None:
    child = fork_server.start_script(SCRIPT, ["wait"])
    child.wait_for_output("ready")
    assert child.is_alive()
    with pytest.raises(TimeoutError, match="still runs after 0 s"):
        child.wait(0)
    child.kill(sig)
    assert child.wait(10) == -sig
    child.kill()  # of a child that has ended: nothing happens
    with pytest.raises(TimeoutError, match="never wrote 'more'"):
        child.wait_for_output("more")


def test_a_named_function_runs(fork_server: ForkServer, tmp_path: Path) -> None:
    child = fork_server.start("tests.harness.test_forkserver:write_arguments", ["one", "two"], cwd=tmp_path)
    assert child.wait(30) == 0, child.stderr
    assert (tmp_path / "arguments").read_text() == "one two"


def write_arguments() -> None:
    Path("arguments").write_text(" ".join(sys.argv[1:]))


def test_an_orphan_is_seen_and_goes_with_the_server() -> None:
    with ForkServer(imports=[]) as server:
        child = server.start_script(SCRIPT, ["orphan"])
        orphan = json.loads(child.wait_for_output("orphan"))["orphan"]
        child.kill()
        assert child.wait(10) == -signal.SIGKILL
        assert orphan in forkserver.children_of(server.pid)
        assert not forkserver.wait_gone(orphan, 0)
    assert forkserver.wait_gone(orphan, 0)
