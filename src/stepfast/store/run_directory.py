"""A run directory: which checkpoints are in it, and which names (`latest`, a step, a tag) mean which of them.

Not here: reading what is in a checkpoint (`reading`), writing one (`staging`), deleting (`tidy`).
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

from stepfast.core.errors import Damaged, FormatTooNew, NoCheckpoint, NotARun, UsageError
from stepfast.files import durable, strict, strict_json
from stepfast.files.disk_errors import storage_failed
from stepfast.files.durable import AnyPath
from stepfast.store import manifest_json, names
from stepfast.store.manifest import Manifest
from stepfast.store.manifest_json import FORMAT

RUN_FILE = "stepfast.json"
CHECKPOINTS = "checkpoints"
REFS = "refs"
TAGS = "tags"
PROGRESS = "progress.bin"
LEDGER = "ledger.jsonl"
SMALL_FILE_BYTES = 64 << 10
_OWN_NAMES = frozenset(
    (
        *(CHECKPOINTS, REFS, PROGRESS, LEDGER, "lock", "agent.sock", "agent.log", ".gitignore"),
        *("..gitignore.new", f".{RUN_FILE}.new"),  # what replace_file leaves when it is interrupted
    )
)


class RunDirectory:
    """Made by `create` or `open`. Caches nothing, since the writer may be another process."""

    def __init__(self, path: Path, run_id: str, parent: dict[str, Any] | None) -> None:
        self.path = path
        self.run_id = run_id
        self.parent = parent
        """For a branch: run_id, step and manifest_sha256 of where it comes from."""

    @staticmethod
    def is_run(path: AnyPath) -> bool:
        """Whether there is a run, be it damaged. False also for a folder where making one was interrupted."""
        directory = Path(path)
        return os.path.lexists(directory / RUN_FILE) or bool(_list_steps(directory / CHECKPOINTS))

    @classmethod
    def create(cls, path: AnyPath, run_id: str, parent: dict[str, Any] | None = None) -> RunDirectory:
        """Make a run where nothing is, or where making one was interrupted.

        Raises:
            NotARun: there is something else, or a run already.
            Damaged: checkpoints without the file that makes them a run.
            StorageFailed: the disk refused.
        """
        directory = Path(os.path.realpath(path))
        if not strict.is_name(run_id):
            raise UsageError(f"{run_id!a} cannot be the id of a run")
        if cls.is_run(directory):
            cls.open(directory)
            raise NotARun(f"{directory} holds a run already", hint="go on with it, or choose another path")
        if os.path.lexists(directory):
            _check_is_directory(directory)
            foreign = sorted(set(os.listdir(directory)) - _OWN_NAMES)
            if foreign:
                raise NotARun(
                    f"{directory} is not a run and not empty: {ascii(foreign[0])[1:-1]} lies there",
                    hint="choose a new or empty directory for the run",
                )
        content = strict_json.dumps({"format": FORMAT, "run_id": run_id, "parent": parent})
        try:
            durable.make_dirs(directory)
            durable.replace_file(directory / ".gitignore", b"*\n")
            for part in (directory / CHECKPOINTS, directory / REFS, directory / REFS / TAGS):
                durable.make_dirs(part)
            durable.fsync_dir(directory / REFS)
            durable.append_line(directory / LEDGER, b"\n", sync=True)
            durable.replace_file(directory / RUN_FILE, content)  # last: from here on it is a run
            durable.fsync_parents(directory)
        except OSError as error:
            raise storage_failed(error, "make the run directory", directory) from error
        return cls(directory, run_id, parent)

    @classmethod
    def open(cls, path: AnyPath) -> RunDirectory:
        """Open the run that is there. Nothing is written.

        Raises:
            NotARun: there is none.
            FormatTooNew: a newer program made it.
            Damaged: it is not what the format says.
        """
        directory = Path(os.path.realpath(path))
        if not os.path.lexists(directory):
            raise NotARun(f"{directory} does not exist", hint="look for runs with: stepfast ls")
        _check_is_directory(directory)
        try:
            data = strict.read_file(directory, RUN_FILE, SMALL_FILE_BYTES)
        except FileNotFoundError:
            if _list_steps(directory / CHECKPOINTS):
                raise Damaged(
                    f"{directory} holds checkpoints, but {RUN_FILE} is missing",
                    hint=f"bring {RUN_FILE} back from a copy, or move the directory away to start anew",
                ) from None
            raise NotARun(f"{directory} is not a run: it has no {RUN_FILE}") from None
        value = _object(data, directory / RUN_FILE)
        manifest_json.check_format(value, str(directory / RUN_FILE))
        run_id, parent = value.get("run_id"), value.get("parent")
        if (
            not isinstance(run_id, str)
            or not strict.is_name(run_id)
            or not (parent is None or isinstance(parent, dict))
        ):
            raise Damaged(f"{directory / RUN_FILE} has no valid run_id or parent")
        for part in (directory / CHECKPOINTS, directory / REFS, directory / REFS / TAGS):
            _check_part(part)
        return cls(directory, run_id, parent)

    @property
    def checkpoints_path(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def progress_path(self) -> Path:
        return self.path / PROGRESS

    @property
    def ledger_path(self) -> Path:
        return self.path / LEDGER

    def steps(self) -> list[int]:
        """Steps of the committed checkpoints, ascending. Damage shows when they are read."""
        return _list_steps(self.checkpoints_path)

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self.checkpoints_path / names.step_directory(step)

    def manifest(self, step: int) -> Manifest:
        """The manifest of a committed checkpoint.

        Raises:
            NoCheckpoint: there is none.
            Damaged, FormatTooNew: it cannot be used.
        """
        return self.read_manifest(step)[0]

    def manifest_sha256(self, step: int) -> str:
        """SHA-256 of a valid manifest, in hexadecimal."""
        return self.read_manifest(step)[1]

    def read_manifest(self, step: int) -> tuple[Manifest, str]:
        """The manifest and its SHA-256, from the same bytes."""
        directory = self.checkpoint_path(step)
        if not os.path.lexists(directory):
            raise NoCheckpoint(f"{self.path} has no checkpoint of step {step}", hint=self._which())
        _check_part(self.checkpoints_path)
        try:
            data = strict.read_file(directory, names.MANIFEST, manifest_json.MAX_BYTES)
        except FileNotFoundError:
            raise Damaged(f"{directory} has no {names.MANIFEST}") from None
        try:
            manifest = Manifest.from_json(data)
        except (Damaged, FormatTooNew) as error:
            raise type(error)(f"{directory / names.MANIFEST}: {error.message}", hint=error.hint) from error
        if manifest.run_id != self.run_id:
            raise Damaged(f"{directory} belongs to the run {manifest.run_id}, not to {self.run_id}")
        if manifest.step != step:
            raise Damaged(f"{directory} holds step {manifest.step}")
        for stored in manifest.files:
            if not stored.digest or not all(leaf.digest for leaf in stored.leaves):
                raise Damaged(f"{directory / names.MANIFEST}: {stored.name} or a leaf in it has no digest")
        return manifest, hashlib.sha256(data).hexdigest()

    def sizes(self) -> dict[int, int]:
        """Bytes by step, hard links counted each time; steps whose manifest cannot be read are left out."""
        result = {}
        for step in self.steps():
            try:
                result[step] = self.manifest(step).size_bytes
            except (Damaged, FormatTooNew, NoCheckpoint):
                continue
        return result

    def resolve(self, which: str) -> int:
        """The step that `latest`, a number or a tag means.

        Raises:
            NoCheckpoint: there is none.
        """
        steps = self.steps()
        if which == names.LATEST:
            if not steps:
                raise NoCheckpoint(f"{self.path} has no checkpoint yet")
            return steps[-1]
        if which.isdecimal() and which.isascii() and len(which) <= 19:
            step: int | None = int(which)
        else:
            step = self.tags().get(which)
        if step is None or step not in steps:
            raise NoCheckpoint(f"{self.path} has no checkpoint {ascii(which)[1:-1]}", hint=self._which())
        return step

    def tags(self) -> dict[str, int]:
        """Tags and their steps. A tag that cannot be read is an error, since it keeps a checkpoint."""
        directory = self.path / REFS / TAGS
        try:
            found = sorted(name for name in os.listdir(directory) if names.is_tag(name))
        except FileNotFoundError:
            return {}
        return {name: self._read_ref(directory, name)[0] for name in found}

    def latest_ref(self) -> tuple[int, str] | None:
        """Step and manifest SHA-256 in `refs/latest`; it may be behind `resolve("latest")` after a crash."""
        try:
            return self._read_ref(self.path / REFS, names.LATEST)
        except FileNotFoundError:
            return None

    def set_latest(self, step: int) -> None:
        """Point `refs/latest` to a committed checkpoint, durably."""
        self._write_ref(self.path / REFS / names.LATEST, step)

    def set_tag(self, name: str, step: int) -> None:
        """Keep a committed checkpoint for good under a name; a tag that exists moves."""
        if not names.is_tag(name):
            raise UsageError(
                f"{name!a} cannot be a tag",
                hint="letters, digits, . _ - (not only digits, not `latest`)",
            )
        self._write_ref(self.path / REFS / TAGS / name, step)

    def _read_ref(self, directory: Path, name: str) -> tuple[int, str]:
        value = _object(strict.read_file(directory, name, SMALL_FILE_BYTES), directory / name)
        step, sha256 = value.get("step"), value.get("manifest_sha256")
        if type(step) is not int or step < 0 or not isinstance(sha256, str) or not manifest_json.is_sha256(sha256):
            raise Damaged(f"{directory / name} names no checkpoint", hint="delete it; no checkpoint is lost by that")
        return step, sha256

    def _write_ref(self, path: Path, step: int) -> None:
        content = strict_json.dumps({"step": step, "manifest_sha256": self.manifest_sha256(step)}, indent=None)
        try:
            durable.replace_file(path, content + b"\n")
        except OSError as error:
            raise storage_failed(error, "write", path) from error

    def _which(self) -> str:
        steps = self.steps()
        if not steps:
            return "no step was saved yet"
        shown = ", ".join(map(str, steps[-8:]))
        return f"there is {'... ' if len(steps) > 8 else ''}{shown}; tags: {', '.join(self.tags()) or 'none'}"


def _list_steps(checkpoints: Path) -> list[int]:
    try:
        found = os.listdir(checkpoints)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Damaged(f"{checkpoints} cannot be read: {os.strerror(error.errno or 0)}") from error
    steps = (names.step_of_directory(name) for name in found)
    return sorted(step for step in steps if step is not None)


def _check_is_directory(path: Path) -> None:
    if not path.is_dir():
        raise NotARun(f"{path} is not a directory", hint="choose another path for the run")


def _check_part(path: Path) -> None:
    """Parts of a run are directories of its own, never links to somewhere else."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    if not stat.S_ISDIR(mode):
        raise Damaged(f"{path} is not a directory, or a symbolic link, which is never followed here")


def _object(data: bytes, path: Path) -> dict[str, Any]:
    try:
        value = strict_json.loads(data, max_bytes=SMALL_FILE_BYTES)
    except ValueError as error:
        raise Damaged(f"{path} is not strict JSON: {error}") from error
    if not isinstance(value, dict):
        raise Damaged(f"{path} is not a JSON object")
    return value
