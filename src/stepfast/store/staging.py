"""Writing one checkpoint: into a staging directory, then renamed into place, in the format page's order.

Not here: when to save, where the bytes come from, digests (`persist`). A staging belongs to one thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import xxhash

from stepfast.core.errors import Damaged, FormatTooNew, NoCheckpoint, StateMismatch, StorageFailed, UsageError
from stepfast.core.points import point
from stepfast.core.words import StoredFile
from stepfast.files import durable, strict
from stepfast.files.disk_errors import storage_failed
from stepfast.store import names
from stepfast.store.index import build_indexes
from stepfast.store.manifest import Manifest
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory

STAGING = ".staging-"
TRASH = ".trash-"
BAD = ".bad-"
REPLACED = ".replaced-"

_T = TypeVar("_T")


def free_name(directory: Path, prefix: str) -> Path:
    """A name that begins with the prefix and is not taken."""
    taken = set(os.listdir(directory))
    number = 0
    while f"{prefix}-{number}" in taken:
        number += 1
    return directory / f"{prefix}-{number}"


class Staging:
    """Begin, write or link each file, commit. After any StorageFailed it is over: begin another one."""

    def __init__(self, run: RunDirectory, step: int, path: Path) -> None:
        self.path = path
        self._run = run
        self._step = step
        self._sizes: dict[str, int] = {}
        self._is_over = False

    @classmethod
    def begin(cls, run: RunDirectory, step: int, incarnation: str) -> Staging:
        """Make the staging directory; `incarnation` tells the writer's process from others."""
        if not strict.is_name(incarnation) or len(incarnation) > 100:
            raise UsageError(f"{incarnation!a} cannot be part of a name")
        parent = run.checkpoints_path
        try:
            path = free_name(parent, f"{STAGING}{names.step_directory(step)}-{incarnation}")
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)
        except OSError as error:
            raise storage_failed(error, "make a staging directory in", parent) from error
        point("staging:begun")
        return cls(run, step, path)

    def write(self, stored: StoredFile, pieces: Iterable[memoryview]) -> None:
        """Write a file, durable. The digest in `stored` may still be empty; it counts in the manifest."""
        self._check_new(stored)
        target = self.path / stored.name
        self._guarded(lambda: durable.write_direct(target, pieces, stored.size), "write", stored.name)
        self._sizes[stored.name] = stored.size
        point("staging:file")

    def link(self, stored: StoredFile, from_step: int) -> bool:
        """Take a file over from another checkpoint of this run. False: it had to be copied.

        Raises:
            Damaged: that checkpoint has no such file.
        """
        self._check_new(stored)
        source = self._run.manifest(from_step).file(stored.name)
        directory = self._run.checkpoint_path(from_step)
        if source is None or (source.size, source.digest) != (stored.size, stored.digest):
            raise Damaged(f"{directory} does not hold {stored.name} with the digest {stored.digest}")
        try:
            os.close(strict.open_file(directory, stored.name, stored.size))
        except FileNotFoundError:
            raise Damaged(f"{directory / stored.name} is missing") from None
        target = self.path / stored.name
        linked = self._guarded(lambda: durable.link_or_copy(directory / stored.name, target), "link", stored.name)
        self._sizes[stored.name] = stored.size
        point("staging:file")
        return linked

    def commit(self, manifest: Manifest) -> str:
        """Make it a checkpoint, durably; returns the SHA-256 of its manifest.

        When the step exists: see the format page. If the same is there already, that one stays and its
        SHA-256 is returned.

        Raises:
            StateMismatch: the step exists and is another one.
            StorageFailed: the disk refused; nothing that was committed is lost.
        """
        assert not self._is_over, "this staging is over"
        manifest = self._with_indexes(manifest)
        self._check_complete(manifest)
        content = manifest.to_json()
        self._guarded(lambda: durable.write_file(self.path / names.MANIFEST, content), "write", names.MANIFEST)
        point("staging:manifest")
        self._guarded(lambda: durable.fsync_dir(self.path), "sync", "")
        point("staging:synced")
        if not os.path.lexists(self._run.checkpoint_path(self._step)):
            sha256 = self._move_in(hashlib.sha256(content).hexdigest())
        else:
            sha256 = self._onto_existing(manifest, hashlib.sha256(content).hexdigest())
        self._is_over = True
        self._point_refs()
        point("commit:done")
        return sha256

    def abandon(self) -> None:
        """Give everything up. Never fails: what cannot be deleted is cleared away by the next writer."""
        self._is_over = True
        with contextlib.suppress(OSError):
            durable.delete_tree(self.path)

    def _move_in(self, sha256: str) -> str:
        point("commit:before-rename")
        target = self._run.checkpoint_path(self._step)
        self._guarded(lambda: durable.rename_noreplace(self.path, target), "rename into place", "")
        point("commit:after-rename")
        self._sync_checkpoints()
        return sha256

    def _onto_existing(self, manifest: Manifest, sha256: str) -> str:
        existing = self._run.checkpoint_path(self._step)
        step_name = names.step_directory(self._step)
        old = _intact(self._run, self._step)
        if old is None:
            bad = free_name(self._run.checkpoints_path, BAD + step_name)
            self._guarded(lambda: durable.rename_noreplace(existing, bad), "move aside", "")
            return self._move_in(sha256)
        is_same = _contents(old[0]) == _contents(manifest)
        if is_same and old[0].finished == manifest.finished:
            # Its name may not be durable yet: the writer may have died, or its sync failed.
            self.abandon()
            self._sync_checkpoints()
            return old[1]
        if manifest.revision > old[0].revision or (is_same and manifest.revision == old[0].revision):
            return self._replace(existing, step_name, sha256)
        self.abandon()
        raise StateMismatch(
            f"{self._run.path} has another, intact checkpoint of step {self._step}; the new one was dropped",
            hint=f"to keep both, branch: stepfast branch {self._run.path}@{self._step} NEW",
        )

    def _replace(self, existing: Path, step_name: str, sha256: str) -> str:
        """At no instant is the step missing: the two directories change their names at once."""
        point("commit:before-rename")
        if self._guarded(lambda: durable.exchange(self.path, existing), "exchange", ""):
            point("commit:after-rename")
            self._sync_checkpoints()
            leftover = self.path
        else:
            leftover = free_name(self._run.checkpoints_path, REPLACED + step_name)
            self._guarded(lambda: durable.rename_noreplace(existing, leftover), "move aside", "")
            self._move_in(sha256)
        with contextlib.suppress(OSError):  # the new one is committed; the next writer clears this away
            durable.delete_tree(leftover)
        return sha256

    def _point_refs(self) -> None:
        """The refs hold the SHA-256 of the manifest, which may be another one now."""
        newest = self._run.steps()[-1]
        if newest == self._step:
            self._run.set_latest(self._step)
        for tag, step in self._run.tags().items():
            if step == self._step:
                self._run.set_tag(tag, step)

    def _sync_checkpoints(self) -> None:
        try:
            durable.fsync_dir(self._run.checkpoints_path)
        except OSError as error:
            raise storage_failed(error, "sync", self._run.checkpoints_path) from error

    def _check_new(self, stored: StoredFile) -> None:
        assert not self._is_over, "this staging is over"
        assert stored.name not in self._sizes, f"{stored.name} was written already"
        if not strict.is_name(stored.name) or stored.name == names.MANIFEST:
            raise UsageError(f"{stored.name!a} cannot be the name of a file in a checkpoint")

    def _with_indexes(self, manifest: Manifest) -> Manifest:
        """Several model files get the index that other programs look for."""
        for name, content in build_indexes(manifest.files).items():
            if manifest.file(name) is None:
                stored = StoredFile(name=name, size=len(content), digest=xxhash.xxh3_128_hexdigest(content))
                self.write(stored, [memoryview(content)])
                manifest = replace(manifest, files=(*manifest.files, stored))
        return manifest

    def _check_complete(self, manifest: Manifest) -> None:
        assert manifest.run_id == self._run.run_id, "the manifest is of another run"
        assert manifest.step == self._step, "the manifest is of another step"
        assert {stored.name: stored.size for stored in manifest.files} == self._sizes, "not what was written"
        for stored in manifest.files:
            assert stored.digest, f"{stored.name} has no digest"
            assert all(leaf.digest for leaf in stored.leaves), f"a leaf in {stored.name} has no digest"

    def _guarded(self, action: Callable[[], _T], doing: str, name: str) -> _T:
        """Whatever the disk refuses ends this staging."""
        try:
            return action()
        except OSError as error:
            self.abandon()
            raise storage_failed(error, doing, self.path / name) from error
        except (ValueError, StorageFailed):
            self.abandon()
            raise


def _intact(run: RunDirectory, step: int) -> tuple[Manifest, str] | None:
    """The checkpoint that is there if every byte of it fits."""
    try:
        manifest, sha256 = run.read_manifest(step)
        return None if CheckpointReader(run, step).verify() else (manifest, sha256)
    except (Damaged, NoCheckpoint, FormatTooNew):
        return None


def _contents(manifest: Manifest) -> set[tuple[str, int, str]]:
    return {(stored.name, stored.size, stored.digest) for stored in manifest.files}


def clean_leftovers(run: RunDirectory) -> list[str]:
    """What a new writer does once it has the lock.

    It makes durable what the one before left visible, takes its staging away and empties the trash.
    Returns the names that were cleared.

    Raises:
        StorageFailed: the disk refused.
    """
    checkpoints = run.checkpoints_path
    try:
        durable.fsync_dir(checkpoints)  # first: an exchange that is only visible must not be lost under our renames
        _bring_back_replaced(run)
        cleared = []
        for name in sorted(os.listdir(checkpoints)):
            if name.startswith((STAGING, REPLACED)):
                # A paused writer that wakes up must not find its names again.
                trash = free_name(checkpoints, TRASH + name.split("-", 1)[1])
                durable.rename_noreplace(checkpoints / name, trash)
                cleared.append(name)
            elif name.startswith(TRASH):
                cleared.append(name)
        for directory in (
            checkpoints,
            run.path / "refs" / "tags",
            run.path / "refs",
            run.path,
        ):
            durable.fsync_dir(directory)
        with contextlib.suppress(PermissionError):  # a shared parent that we may enter, but not list
            durable.fsync_dir(run.path.parent)
        for name in os.listdir(checkpoints):
            if name.startswith(TRASH):
                _delete(checkpoints / name)
    except OSError as error:
        raise storage_failed(error, "clear up", checkpoints) from error
    return cleared


def _bring_back_replaced(run: RunDirectory) -> None:
    for name in sorted(os.listdir(run.checkpoints_path)):
        step = names.step_of_directory(name.removeprefix(REPLACED).rpartition("-")[0])
        if name.startswith(REPLACED) and step is not None and not os.path.lexists(run.checkpoint_path(step)):
            durable.rename_noreplace(run.checkpoints_path / name, run.checkpoint_path(step))


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        durable.delete_tree(path)
    else:
        os.unlink(path)
