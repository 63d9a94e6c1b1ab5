"""Committing: what is there afterwards, after a failure, and onto a step that exists."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from stepfast.core import points
from stepfast.core.errors import Damaged, NoCheckpoint, StateMismatch, StorageFailed
from stepfast.files import durable
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory
from stepfast.store.staging import Staging, clean_leftovers
from tests.store import build


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return build.make_run(tmp_path / "run", steps=(100,))


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    points.clear()


class Killed(BaseException):
    """Stands for the process ending here: nothing of the writer runs after it."""


def kill() -> None:
    raise Killed


def names(run: RunDirectory) -> list[str]:
    return sorted(os.listdir(run.checkpoints_path))


def assert_intact(run: RunDirectory, *steps: int) -> None:
    assert RunDirectory.open(run.path).steps() == list(steps)
    for step in steps:
        assert CheckpointReader(run, step).verify() == []


def test_a_commit(run: RunDirectory) -> None:
    sha256 = build.commit(run, 200)
    path = run.checkpoint_path(200)
    assert sha256 == hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest() == run.manifest_sha256(200)
    assert run.latest_ref() == (200, sha256)
    assert names(run) == ["step-00000100", "step-00000200"]
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o444}
    assert path.stat().st_mode & 0o777 == 0o700
    assert_intact(run, 100, 200)


def test_equal_files_are_hard_links(run: RunDirectory) -> None:
    files = build.files_of(100)
    staging = Staging.begin(run, 200, "a1")
    assert all([staging.link(stored, 100) for stored, _ in files])
    staging.commit(build.manifest_of(200, files))
    for stored, _ in files:
        assert (run.checkpoint_path(100) / stored.name).stat().st_nlink == 2
    shutil.rmtree(run.checkpoint_path(100))
    assert_intact(run, 200)


def test_only_the_file_that_is_meant_is_linked(run: RunDirectory) -> None:
    staging = Staging.begin(run, 200, "a1")
    stored = build.files_of(100)[0][0]
    other = build.files_of(200)[0][0]
    with pytest.raises(Damaged, match="does not hold"):
        staging.link(other, 100)
    with pytest.raises(NoCheckpoint):
        staging.link(stored, 150)
    (run.checkpoint_path(100) / stored.name).unlink()
    (run.checkpoint_path(100) / stored.name).symlink_to("/etc/passwd")
    with pytest.raises(Damaged, match="symbolic link"):
        staging.link(stored, 100)
    staging.abandon()


def test_several_model_files_get_the_index_of_the_ecosystem(run: RunDirectory) -> None:
    parts = [
        build.tensor_file(
            f"model-0000{number}-of-00002.safetensors", {f"layer{number}.weight": np.full(3, float(number))}, "m."
        )
        for number in (1, 2)
    ]
    build.commit(run, 200, [*parts, *build.files_of(200)[2:]])
    path = run.checkpoint_path(200)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    state = {}
    for file in sorted(set(index["weight_map"].values())):
        part = load_file(path / file)
        assert all(index["weight_map"][key] == file for key in part)
        state |= part
    assert state.keys() == index["weight_map"].keys() == {"layer1.weight", "layer2.weight"}
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in state.values())
    assert state["layer2.weight"].tolist() == [2, 2, 2]
    assert_intact(run, 100, 200)
    build.flip(path / "model.safetensors.index.json", 20)
    assert [problem.file for problem in CheckpointReader(run, 200).verify()] == ["model.safetensors.index.json"]


BEFORE = ["staging:begun", "staging:file", "staging:manifest", "staging:synced", "commit:before-rename"]
AFTER = ["commit:after-rename", "commit:done"]


@pytest.mark.parametrize("where", BEFORE + AFTER)
def test_a_writer_killed_at_any_point_leaves_whole_checkpoints_only(run: RunDirectory, where: str) -> None:
    points.plant(where, kill)
    with pytest.raises(Killed):
        build.commit(run, 200)
    points.clear()
    assert_intact(run, 100) if where in BEFORE else assert_intact(run, 100, 200)
    cleared = clean_leftovers(run)
    assert len(cleared) == (1 if where in BEFORE else 0)
    assert names(run) == [f"step-{step:08d}" for step in run.steps()]
    build.commit(run, 200)
    assert_intact(run, 100, 200)
    assert run.latest_ref() == (200, run.manifest_sha256(200))


@pytest.mark.parametrize("where", BEFORE)
def test_a_paused_writer_that_wakes_up_after_a_takeover_commits_nothing(run: RunDirectory, where: str) -> None:
    points.plant(where, lambda: clean_leftovers(run) and None)
    with pytest.raises(StorageFailed):
        build.commit(run, 200)
    points.clear()
    assert names(run) == ["step-00000100"]
    build.commit(run, 200)
    assert_intact(run, 100, 200)


def test_leftovers_of_every_kind_are_cleared_and_nothing_outside(run: RunDirectory, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    top = run.checkpoints_path
    (top / ".trash-step-00000050-0").mkdir()
    (top / ".trash-step-00000050-0" / "link").symlink_to(outside)
    (top / ".trash-link-0").symlink_to(outside)
    (top / ".staging-step-00000200-x-0").mkdir()
    (top / ".staging-link").symlink_to(outside)
    (top / ".bad-step-00000050-0").mkdir()
    (top / "notes").mkdir()
    assert len(clean_leftovers(run)) == 4
    assert names(run) == [".bad-step-00000050-0", "notes", "step-00000100"]
    assert os.listdir(outside) == ["file"]


def test_the_same_again_changes_nothing(run: RunDirectory) -> None:
    before = build.tree_digest(run.path)
    old = run.manifest_sha256(100)
    assert build.commit(run, 100, k0_s=99.0) == old
    assert build.tree_digest(run.path) == before


def test_a_damaged_one_is_moved_aside(run: RunDirectory) -> None:
    run.set_tag("best", 100)
    build.flip(run.checkpoint_path(100) / "model.safetensors", 4100)
    sha256 = build.commit(run, 100, k0_s=1.0)
    assert names(run) == [".bad-step-00000100-0", "step-00000100"]
    assert_intact(run, 100)
    assert json.loads((run.path / "refs/tags/best").read_text())["manifest_sha256"] == sha256
    (run.checkpoint_path(100) / "manifest.json").unlink()
    build.commit(run, 100)
    assert names(run) == [".bad-step-00000100-0", ".bad-step-00000100-1", "step-00000100"]


@pytest.mark.parametrize("revision", [0, 1])
def test_another_one_is_an_error_that_says_branch(run: RunDirectory, revision: int) -> None:
    build.commit(run, 100, build.files_of(101), revision=1)
    before = build.tree_digest(run.path)
    with pytest.raises(StateMismatch, match="branch"):
        build.commit(run, 100, build.files_of(102), revision=revision)
    assert build.tree_digest(run.path) == before


def test_a_later_revision_takes_the_place(run: RunDirectory) -> None:
    run.set_tag("keep", 100)
    sha256 = build.commit(run, 100, build.files_of(101), revision=1)
    assert run.manifest(100).revision == 1
    assert run.latest_ref() == (100, sha256)
    assert names(run) == ["step-00000100"]
    assert json.loads((run.path / "refs/tags/keep").read_text())["manifest_sha256"] == sha256
    assert_intact(run, 100)


def test_the_end_of_a_run_is_told_though_its_files_are_the_same(run: RunDirectory) -> None:
    build.commit(run, 100, finished="epochs")
    assert run.manifest(100).finished == "epochs"


@pytest.mark.parametrize("has_exchange", [True, False])
@pytest.mark.parametrize("where", ["commit:before-rename", "commit:after-rename"])
def test_replacing_never_leaves_the_run_without_the_step(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, has_exchange: bool, where: str
) -> None:
    if not has_exchange:  # as on a file system that does not know it
        monkeypatch.setattr(durable, "exchange", lambda one, other: False)
    points.plant(where, kill)
    with pytest.raises(Killed):
        build.commit(run, 100, build.files_of(101), revision=1)
    clean_leftovers(run)
    assert_intact(run, 100)
    assert names(run) == ["step-00000100"]
    assert run.manifest(100).revision == (1 if where == "commit:after-rename" else 0)


def test_killed_between_the_two_renames_of_a_file_system_without_exchange(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "exchange", lambda one, other: False)

    def at_rename() -> None:
        if not run.steps():
            raise Killed

    points.plant("commit:before-rename", at_rename)
    with pytest.raises(Killed):
        build.commit(run, 100, build.files_of(101), revision=1)
    assert run.steps() == []
    clean_leftovers(run)
    assert run.manifest(100).revision == 0
    assert_intact(run, 100)


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """A real limit of the kernel: no file may have more than 4,200 bytes. Pytest's own log may be longer than that, so
    it must be over before pytest writes again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4200, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_refuses_leaves_the_old_ones_and_says_what_to_do(tmp_path: Path) -> None:
    with full_disk():
        run = RunDirectory.create(tmp_path / "run", build.RUN_ID)
        small = build.files_of(100)[2:]
        build.commit(run, 100, small)
        with pytest.raises(StorageFailed, match=r"model\.safetensors") as caught:
            build.commit(run, 200)
        assert caught.value.hint
        assert names(run) == ["step-00000100"]
        assert_intact(run, 100)
        build.commit(run, 300, small)
        assert_intact(run, 100, 300)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(run: RunDirectory) -> None:
    run.checkpoints_path.chmod(0o500)
    try:
        with pytest.raises(StorageFailed, match="staging"):
            build.commit(run, 200)
    finally:
        run.checkpoints_path.chmod(0o700)


def test_a_sync_that_fails_gives_the_staging_up(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th fsync fails, for every n: either an error and the old state, or all of it."""
    real = os.fsync
    for failing in range(1, 30):
        left = [failing]

        def fsync(fd: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(5, os.strerror(5))
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)
        try:
            build.commit(run, 200)
            if left[0] > 0:
                break
            raise AssertionError(f"fsync {failing} failed and nobody noticed")
        except StorageFailed:
            pass
        finally:
            monkeypatch.setattr(os, "fsync", real)
        assert not [name for name in names(run) if name.startswith(".")]
        for step in run.steps():
            assert CheckpointReader(run, step).verify() == []
        shutil.rmtree(run.checkpoint_path(200), ignore_errors=True)
    assert failing == 10, "4 files, manifest, staging, checkpoints, refs/latest and its directory"
