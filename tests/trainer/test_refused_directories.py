"""Directories that cannot be a run, or not now: a named error, and nothing in them is touched."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import stepfast
from stepfast.core.errors import (
    Damaged,
    FormatTooNew,
    NoCheckpoint,
    NotARun,
    RunHeld,
    StepfastError,
    StorageFailed,
    UsageError,
)
from tests.forkserver import ForkServer
from tests.trainer import scene
from tests.trainer.conftest import Said
from tests.trainer.scene import build
from tests.trainer.small_disk import CANNOT

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[2])


def refused(path: Path | str, kind: type[StepfastError], **arguments: object) -> StepfastError:
    script = build()
    with pytest.raises(kind) as raised:
        script.run(path, **arguments)
    assert not script.optimizer.state
    assert raised.value.hint, "the next thing to do"
    assert str(path).split("\0")[0] in raised.value.message
    return raised.value


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text("mine")
    refused(path, NotARun)
    assert path.read_text() == "mine"


def test_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refused(tmp_path / "file" / "run", StepfastError)


def test_a_directory_with_something_else_in_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    refused(tmp_path / "run", NotARun)
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_an_empty_directory_becomes_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    build().run(tmp_path / "run").close()
    assert (tmp_path / "run" / "stepfast.json").is_file()


@pytest.mark.parametrize("path", [5, "", "nul\0byte", b"bytes", ["a"], "runs/" + "a" * 300])
def test_a_path_that_is_no_path(path: Any) -> None:
    with pytest.raises(UsageError) as raised:
        build().run(path)
    assert repr(path) in raised.value.message
    assert raised.value.hint


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crashed") / "run"
    scene.crash_at(path, 8)
    return path


@pytest.fixture
def run_path(tmp_path: Path, crashed: Path) -> Path:
    """A run that died, with checkpoints of steps 3, 5 and 6."""
    shutil.copytree(crashed, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_of_a_newer_format(run_path: Path) -> None:
    marker = run_path / "stepfast.json"
    content = json.loads(marker.read_text())
    marker.chmod(0o644)
    marker.write_text(json.dumps(content | {"format": 7}))
    before = scene.files(run_path)
    error = refused(run_path, FormatTooNew)
    assert "7" in error.message
    assert "1" in error.message
    assert scene.files(run_path) == before


def test_a_checkpoint_of_a_newer_format(run_path: Path) -> None:
    manifest = run_path / "checkpoints" / "step-00000006" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(content | {"format": 7}))
    before = scene.files(run_path)
    script = build()
    with pytest.raises(FormatTooNew) as raised:
        script.run(run_path)  # not the older checkpoint in silence: three steps would be another program's
    assert "7" in raised.value.message
    assert raised.value.hint
    assert scene.files(run_path) == before


SCRIPT = f"""
import signal, sys
sys.path.append({ROOT!r})
import torch, stepfast
try:
    run = stepfast.Run(sys.argv[1], model=torch.nn.Linear(1, 1), steps=2)
    for step in run:
        if sys.argv[2] == "hold":
            print("holds", flush=True)
            signal.pause()
except stepfast.StepfastError as error:
    print(f"{{error.code}}: {{error.message}} -- {{error.hint}}")
else:
    print("done")
"""


def test_another_script(tmp_path: Path, fork_server: ForkServer) -> None:
    said = []
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text(SCRIPT)
        child = fork_server.start_script(tmp_path / name, [str(tmp_path / "run"), "go"])
        assert child.wait(30) == 0, child.stderr
        said.append(child.stdout)
    assert said[0] == "done\n"
    assert said[1].startswith("setting-changed:")
    assert "was started with script=train.py; other.py has other.py" in said[1]
    assert "STEPFAST_CHANGE=script python other.py" in said[1]


def test_two_processes_on_one_run(tmp_path: Path, fork_server: ForkServer) -> None:
    (tmp_path / "holder.py").write_text(SCRIPT)
    child = fork_server.start_script(tmp_path / "holder.py", [str(tmp_path / "run"), "hold"])
    try:
        child.wait_for_output("holds")
        error = refused(tmp_path / "run", RunHeld)
        assert f"is in use by process {child.pid} on " in error.message
        assert "script holder.py" in error.message
        assert f"stepfast stop {tmp_path / 'run'}" in error.hint
        assert child.is_alive()
    finally:
        child.kill()
        child.wait(10)
    # The dead holder's agent writes its last words and lets go; nobody has to clean up.
    with build().run(tmp_path / "run") as run:
        assert run.step == 0


def test_require_without_a_checkpoint(tmp_path: Path) -> None:
    refused(tmp_path / "run", NoCheckpoint, resume="require")
    assert not (tmp_path / "run").exists()


def test_require_with_a_checkpoint(run_path: Path, undisturbed: object) -> None:
    run = build().run(run_path, resume="require")
    assert run.step == 6
    run.close()


# ------------------------------------------------------------------ damage


def damage(file: Path) -> None:
    """Turn a byte in the middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x20
    file.chmod(0o644)
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "loop.json", "manifest.json"])
def test_newest_damaged_is_named_and_the_one_before_is_used(
    run_path: Path, said: Said, undisturbed: object, name: str
) -> None:
    damage(run_path / "checkpoints" / "step-00000006" / name)
    script = build()
    run = script.run(run_path)
    assert run.step == 5
    assert "step-00000006" in run.receipt.passed_over[0]
    said.one("damaged, not used:", "step-00000006")
    scene.train(run, script)
    assert scene.final(run, script) == undisturbed()  # type: ignore[operator]


def test_all_damaged_is_an_error_and_no_fresh_start(run_path: Path) -> None:
    for checkpoint in (run_path / "checkpoints").iterdir():
        damage(checkpoint / "model.safetensors")
    before = scene.files(run_path)
    error = refused(run_path, Damaged)
    for step in (3, 5, 6):
        assert f"step-0000000{step}" in error.message
    assert "STEPFAST_RESUME=fresh" in error.hint
    assert scene.files(run_path) == before


# ------------------------------------------------------------------ disks: a child with a disk of its own


@pytest.fixture(scope="module")
def disks(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the functions of small_disk report."""
    child = fork_server.start("tests.trainer.small_disk:main", [str(tmp_path_factory.mktemp("disks"))])
    status = child.wait(50)
    if status == CANNOT:
        pytest.skip(f"no disk of its own can be mounted here: {child.stdout.strip()}")
    assert status == 0, child.stderr
    return dict(json.loads(child.stdout.splitlines()[-1]))


def test_read_only_disk(disks: dict[str, dict[str, Any]]) -> None:
    found = disks["read_only"]
    assert found["code"] == StorageFailed.code
    assert "read_only/run" in found["message"]
    assert "Read-only file system" in found["message"]
    assert found["hint"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; the read-only disk stands for it")
def test_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    refused(tmp_path / "closed" / "run", StorageFailed)


def test_disk_full_at_the_start(disks: dict[str, dict[str, Any]]) -> None:
    found = disks["full_at_start"]
    assert found["code"] == StorageFailed.code
    assert "No space left on device" in found["message"]
    assert found["hint"]


def test_disk_full_while_saving(disks: dict[str, dict[str, Any]]) -> None:
    found = disks["full_while_saving"]
    assert found["checkpoints_while_full"] == found["checkpoints_before"], "the old ones stay"
    assert found["num_losses"] == 10, "training goes on"
    assert found["is_exact"]
    assert found["newest"] == 10, "a later save works when there is room again"
    lines = [line for line in found["said"] if "failed" in line]
    assert lines
    assert all("Training goes on." in line for line in lines)
    assert "No space left on device" in lines[0]
    assert "ree" in lines[0], "says what to free"


def test_disk_full_to_the_end(disks: dict[str, dict[str, Any]]) -> None:
    """Nothing will try again after the last step: that is an error, and what was saved before can be resumed."""
    found = disks["full_to_the_end"]
    assert found["code"] == StorageFailed.code
    assert found["hint"]
    assert found["resumed_at"][0] == 3
    assert found["is_exact"]


def test_peek_of_these(tmp_path: Path, run_path: Path) -> None:
    assert stepfast.peek(str(tmp_path / "nothing")) is None
    peeked = stepfast.peek(str(run_path))
    assert peeked is not None
    assert (peeked.step, peeked.epoch, peeked.batch, peeked.finished) == (6, 1, 1, None)
    assert peeked.settings["optimizer.lr"] == 0.05
    assert peeked.leaves["model.outer.weight"] == ("F32", (2, 5))
    older = stepfast.peek(f"{run_path}@3")
    assert older is not None
    assert older.step == 3
