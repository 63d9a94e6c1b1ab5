"""Making, opening and naming."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepfast.core.errors import Damaged, NoCheckpoint, NotARun, UsageError
from stepfast.store import names
from stepfast.store.run_directory import RunDirectory
from tests.store import build


def test_create_and_open(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run = RunDirectory.create(tmp_path / "a" / "b" / "run", "id-1", parent={"run_id": "x"})
    finally:
        os.umask(before)
    again = RunDirectory.open(run.path)
    assert (again.run_id, again.parent, again.steps(), again.tags()) == ("id-1", {"run_id": "x"}, [], {})
    assert (run.path / ".gitignore").read_text() == "*\n"
    for here, directories, files in os.walk(tmp_path / "a"):
        assert all(Path(here, name).stat().st_mode & 0o777 == 0o700 for name in directories)
        assert all(Path(here, name).stat().st_mode & 0o777 == 0o600 for name in files)
    with pytest.raises(NotARun, match="already"):
        RunDirectory.create(run.path, "id-2")
    with pytest.raises(NoCheckpoint):
        run.resolve("latest")
    with pytest.raises(UsageError):
        RunDirectory.create(tmp_path / "c", "../x")
    with pytest.raises(NotARun, match="does not exist"):
        RunDirectory.open(tmp_path / "none")


def test_an_interrupted_making_is_gone_on_with(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", "id-1")
    (run.path / "stepfast.json").rename(run.path / ".stepfast.json.new")
    (run.path / "lock").touch()
    assert not RunDirectory.is_run(run.path)
    with pytest.raises(NotARun):
        RunDirectory.open(run.path)
    assert RunDirectory.create(run.path, "id-2").run_id == RunDirectory.open(run.path).run_id == "id-2"


def test_no_silent_fresh_start_over_checkpoints(tmp_path: Path) -> None:
    run = build.make_run(tmp_path / "run")
    (run.path / "stepfast.json").unlink()
    assert RunDirectory.is_run(run.path)
    for action in (lambda: RunDirectory.open(run.path), lambda: RunDirectory.create(run.path, "id-2")):
        with pytest.raises(Damaged, match="missing"):
            action()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(NotARun, match=r"thesis\.tex"):
        RunDirectory.create(tmp_path, "id-1")
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(NotARun, match="not a directory"):
        RunDirectory.create(tmp_path / "thesis.tex", "id-1")


def test_names_of_checkpoints(tmp_path: Path) -> None:
    run = build.make_run(tmp_path / "run", steps=(9, 500, 123456789))
    assert run.steps() == [9, 500, 123456789]
    run.set_tag("best", 500)
    run.set_tag("best", 9)
    assert run.tags() == {"best": 9}
    assert [run.resolve(which) for which in ("latest", "500", "best")] == [123456789, 500, 9]
    for which in ("501", "worst", "../x", "", "9" * 30, "\u0665"):
        with pytest.raises(NoCheckpoint):
            run.resolve(which)
    for tag in ("latest", "500", "../x", "", ".x"):
        with pytest.raises(UsageError):
            run.set_tag(tag, 500)
    with pytest.raises(NoCheckpoint):
        run.set_tag("none", 501)
    assert run.sizes() == {step: run.manifest(step).size_bytes for step in run.steps()}


def test_latest_is_the_newest_that_is_there(tmp_path: Path) -> None:
    run = build.make_run(tmp_path / "run")
    run.set_latest(100)
    assert run.resolve("latest") == 200
    assert run.latest_ref() == (100, run.manifest_sha256(100))
    (run.path / "refs" / "latest").unlink()
    assert run.latest_ref() is None
    assert run.resolve("latest") == 200


@pytest.mark.parametrize(
    "name",
    [
        "step-500",
        "step-0000500",
        "step-000000500",
        "step-00000500 ",
        "step-9999999999999999999",
        "step-x",
        "xstep-00000500",
    ],
)
def test_what_is_no_checkpoint(name: str) -> None:
    assert names.step_of_directory(name) is None


@pytest.mark.parametrize("step", [0, 1, 99999999, 100000000, 2**63 - 1])
def test_steps_and_directories(step: int) -> None:
    assert names.step_of_directory(names.step_directory(step)) == step


def test_a_committed_manifest_has_every_digest(tmp_path: Path) -> None:
    run = build.make_run(tmp_path / "run", steps=(1,))
    build.edit_manifest(run, 1, lambda value: value["files"][2].update(digest=""))
    with pytest.raises(Damaged, match=r"loop\.json .* has no digest"):
        run.manifest(1)
