"""The demo: played once for real, and its verdict on runs that are not the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stepfast.cli.demo import command
from stepfast.cli.demo.verdict import judge
from stepfast.core.errors import Damaged
from stepfast.store.progress import ProgressWriter, iter_progress
from stepfast.store.run_directory import RunDirectory
from tests.cli.conftest import Command

BUDGET_S = 60.0


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path, float]:
    directory = tmp_path_factory.mktemp("demo") / "here"
    environment = {**os.environ, "STEPFAST_OFF": "1"}  # a person's own setting must not reach it
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "stepfast", "demo", "--dir", str(directory)],
        capture_output=True,
        text=True,
        timeout=170,
        env=environment,
    )
    return done, directory, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_demo_ends_exact_in_time(played: tuple[subprocess.CompletedProcess[str], Path, float]) -> None:
    done, directory, took_s = played
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "500 skipped, 400 computed again, 370 new",
        "computed again, with what was seen before the crash: all 400 equal",
        "losses, bit by bit: all 1,270 equal",
        "batches, in their order: all 1,270 equal",
        "exact: every leaf, optimizer tensor, loss and batch is equal",
        "89.6 min for both sessions, 68.2 min without the kill",
        f"picture  {directory / 'two-sessions.svg'}",
    ):
        assert words in done.stdout
    for words in (
        "kill -9 ",
        "resumed ",
        "step 500 (epoch 1, next batch 500)",
        "400 finished steps will be computed again",
        "400 steps computed again, all equal to what was seen before the crash",
    ):
        assert words in done.stderr
    picture = (directory / "two-sessions.svg").read_text()
    assert "400 computed again" in picture
    assert "Exact: every leaf" in picture
    # Where others take the cores too, only the work that is done here can be judged.
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    assert took_s < BUDGET_S * max(1.0, busy)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_verdict_is_not_for_free(
    played: tuple[subprocess.CompletedProcess[str], Path, float], tmp_path: Path
) -> None:
    """One batch of the killed run changed in what was seen of it: not exact, and the step is named."""
    _, directory, _ = played
    undisturbed = RunDirectory.open(directory / "undisturbed")
    copy = Path(shutil.copytree(directory / "killed", tmp_path / "killed"))
    exact = judge(RunDirectory.open(copy), undisturbed)
    assert exact.is_exact
    assert (exact.total, exact.skipped, exact.again, exact.new, exact.later) == (1270, 500, 400, 370, (1000, 1270))

    rows = list(iter_progress(copy / "progress.bin"))
    (copy / "progress.bin").unlink()
    for session in (1, 2):
        writer = ProgressWriter(copy / "progress.bin")
        for row in rows:
            if row.session == session:
                changed = row.step == 777 and session == 2
                writer.append(replace(row, batch_digest=b"x" * 16) if changed else row)
        writer.close()
    verdict = judge(RunDirectory.open(copy), undisturbed)
    assert not verdict.is_exact
    assert verdict.seen_before.different == ("step 777",)
    assert verdict.sentence().startswith("not exact: these differ: computed again, with what was seen before")

    with pytest.raises(Damaged, match="1 session, not two"):
        judge(undisturbed, undisturbed)
    shutil.rmtree(copy / "checkpoints/step-00001270")
    with pytest.raises(Damaged, match="has not reached its end"):
        judge(RunDirectory.open(copy), undisturbed)


def test_without_torch(stepfast: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    answer = stepfast("demo", "--dir", tmp_path / "x")
    assert answer.status == 1
    assert answer.err.startswith("error: the demo trains with PyTorch, and this Python has none\n\nhint: ")
    assert answer.err.endswith("-m pip install torch\n")
    assert not (tmp_path / "x").exists()


def test_a_folder_with_other_things_is_left_alone(stepfast: Command, tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "precious").touch()
    answer = stepfast("demo", "--dir", tmp_path)
    assert answer.status == 1
    assert "is not empty, and no earlier demo made it" in answer.err
    assert (tmp_path / "killed" / "precious").exists()
    (tmp_path / "file").touch()
    assert "is not a directory" in stepfast("demo", "--dir", tmp_path / "file").err
