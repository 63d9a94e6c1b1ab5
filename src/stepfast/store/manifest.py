"""The manifest: what a checkpoint holds and where it comes from.

Values only; `manifest_json` reads and writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from stepfast.core.words import StoredFile
from stepfast.store import manifest_json
from stepfast.store.manifest_json import FORMAT


class Parent(TypedDict):
    """The checkpoint before this one."""

    step: int
    manifest_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One checkpoint. `step`, `epoch`, `batch` are the cursor: the next batch not yet in the weights.

    As a draft (before the files were written) digests are empty.
    """

    run_id: str
    step: int
    epoch: int
    batch: int
    reasons: tuple[str, ...]
    created: str
    k0_s: float
    format: int = FORMAT
    name: str | None = None
    finished: str | None = None
    parent: Parent | None = None
    world_size: int = 1
    files: tuple[StoredFile, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)
    k1_s: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    hyperparameters: Any = None
    git_commit: str | None = None
    determinism: dict[str, Any] = field(default_factory=dict)
    revision: int = 0
    """0: saved at the boundary. 1 and up: later in the same step, more of its tail had run."""
    unknown: dict[str, Any] = field(default_factory=dict)
    """Fields that this program does not know; they are written back."""

    def file(self, name: str) -> StoredFile | None:
        return next((stored for stored in self.files if stored.name == name), None)

    @property
    def size_bytes(self) -> int:
        return sum(stored.size for stored in self.files)

    def to_json(self) -> bytes:
        """The file's content.

        Raises:
            StateNotStorable: a field holds what no reader would take.
        """
        return manifest_json.encode({known.name: getattr(self, known.name) for known in fields(self)})

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Read strictly; a draft is taken too.

        Raises:
            FormatTooNew: written by a newer program.
            Damaged: it is not what the format says.
        """
        return cls(**manifest_json.decode(data))
