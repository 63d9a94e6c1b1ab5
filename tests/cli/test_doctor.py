"""doctor: what is in order, and each thing that needs a hand."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stepfast.cli import checks
from stepfast.files.mounts import mount_of
from stepfast.store import ledger
from stepfast.store.run_directory import RunDirectory
from tests.cli.conftest import Command


def states(found: dict[str, object]) -> dict[str, set[str]]:
    by_name: dict[str, set[str]] = {}
    for check in found["checks"]:  # type: ignore[attr-defined]
        by_name.setdefault(check["name"], set()).add(check["state"])
    return by_name


def test_in_order(stepfast: Command, finished: Path) -> None:
    answer = stepfast("doctor", finished)
    assert answer.status == 0, answer.out
    assert "everything is in order" in answer.err
    for words in ("file system", "free: nobody trains here", "4 checkpoints", "free, the next save", "python", "torch"):
        assert words in answer.out
    assert "What Stepfast touches" in answer.out
    found = stepfast("doctor", finished, "--json").json
    assert set(found) == {"version", "run", "in_order", "checks", "touches"}
    assert found["in_order"] is True
    assert all(set(check) == {"name", "state", "text", "hint"} for check in found["checks"])


def test_damage_needs_a_hand(stepfast: Command, finished: Path) -> None:
    (finished / "checkpoints/step-00000016/model.safetensors").unlink()
    answer = stepfast("doctor", finished, "--json")
    assert answer.status == 1
    assert states(answer.json)["checkpoints"] == {"ok", "needs a hand"}
    assert "to look after" in stepfast("doctor", finished).err


def test_a_run_that_cannot_be_opened(stepfast: Command, finished: Path) -> None:
    (finished / "stepfast.json").write_text("{")
    answer = stepfast("doctor", finished)
    assert answer.status == 1
    assert "HELP  directory" in answer.out


def test_left_over_staging_is_told(stepfast: Command, finished: Path) -> None:
    (finished / "checkpoints/.staging-step-00000024-1-99-0").mkdir()
    (finished / "checkpoints/.bad-step-00000008-0").mkdir()
    answer = stepfast("doctor", finished, "--json")
    assert answer.status == 0
    assert states(answer.json)["left over"] == {"note"}


def test_a_save_that_failed_last(stepfast: Command, finished: Path) -> None:
    ledger.append(finished / "ledger.jsonl", {"event": "failed", "step": 24, "message": "No space left on device"})
    answer = stepfast("doctor", finished)
    assert answer.status == 1
    assert "the last one failed: No space left on device" in answer.out


def test_a_resume_that_differed(stepfast: Command, finished: Path) -> None:
    ledger.append(finished / "ledger.jsonl", {"event": "resume-differs", "step": 24, "what": "loss"})
    answer = stepfast("doctor", finished)
    assert answer.status == 1
    assert "step 24, computed again, was not as before (loss)" in answer.out


def test_no_room_for_the_next_save(stepfast: Command, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "free_bytes", lambda _: 10)
    answer = stepfast("doctor", finished, "--json")
    assert answer.status == 1
    assert states(answer.json)["space"] == {"needs a hand"}


def test_an_empty_run(stepfast: Command, tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", "x")
    answer = stepfast("doctor", tmp_path / "run")
    assert answer.status == 0
    assert "none yet" in answer.out


@pytest.mark.parametrize(("host", "state"), [("elsewhere", "note"), (socket.gethostname(), "needs a hand")])
def test_a_lock_whose_trainer_is_gone_or_elsewhere(stepfast: Command, finished: Path, host: str, state: str) -> None:
    """Another process holds it, as an agent that writes last words does."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(20)
    holder = {"pid": 1, "trainer_pid": ended.pid, "host": host, "since": "?", "script": "x.py"}
    code = (
        "import sys\nfrom stepfast.files.locks import RunLock\n"
        f"assert RunLock({str(finished)!r}).try_acquire({holder!r})\nprint('held', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        answer = stepfast("doctor", finished, "--json")
        process.communicate()
    assert states(answer.json)["lock"] == {state}
    assert answer.status == int(state == "needs a hand")


def test_other_versions_are_told(stepfast: Command, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.1")
    answer = stepfast("doctor", finished, "--json")
    assert answer.status == 0
    text = json.dumps([check["text"] for check in answer.json["checks"] if check["name"] == "versions"])
    assert "torch 2." in text
    assert "0.0.1 here" in text


def test_the_mount_is_the_innermost_one(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 8:2 / {tmp_path.parent} rw - nfs4 server:/x rw\n"
        f"3 2 8:3 / {tmp_path}/with\\040space ro - xfs /dev/b rw\n"
        "4 1 8:4 / /other rw - tmpfs tmpfs rw\n"
    )
    assert getattr(mount_of(tmp_path, table), "kind", None) == "nfs4"
    inner = mount_of(tmp_path / "with space" / "x", table)
    assert inner is not None
    assert (inner.kind, inner.is_read_only) == ("xfs", True)
    assert getattr(mount_of("/", table), "kind", None) == "ext4"
    assert mount_of("/", tmp_path / "none") is None
