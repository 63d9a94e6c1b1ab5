"""Values: what was done to names, what to contents, what was synced, what was promised, in order.

Made by `follower` and `calls`; what of it is durable is decided in `states`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.trace import CannotFollow

ROOT = 0
"""Node number of the traced directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One change that is all there or not there after a crash (a write may also be torn).

    Either `names` (directory, name, node or None) or the content of `node`: `data` at `offset`, or a `size`.
    """

    label: str
    names: tuple[tuple[int, str, int | None], ...] = ()
    node: int = -1
    offset: int = 0
    data: bytes = b""
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """An fsync of `node` (None: of everything) that covers the first `covers` effects."""

    label: str
    node: int | None
    covers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A line `ACK ...` the writer printed: from here on it must hold after any crash."""

    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """The tree before the writer began; all of it is durable. Links are files that hold their target."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    contents: dict[int, bytes] = field(default_factory=dict)
    links: dict[int, bytes] = field(default_factory=dict)

    @staticmethod
    def read(root: Path) -> Start:
        start = Start()
        known: dict[int, int] = {}
        count = 0

        def visit(folder: Path, node: int) -> None:
            nonlocal count
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                if (child := known.get(entry.inode())) is None:
                    count += 1
                    child = known[entry.inode()] = count
                    if entry.is_symlink():
                        start.links[child] = os.fsencode(os.readlink(entry.path))
                    elif entry.is_dir():
                        start.folders[child] = {}
                        visit(Path(entry.path), child)
                    elif entry.is_file():
                        start.contents[child] = Path(entry.path).read_bytes()
                    else:
                        raise CannotFollow(f"{entry.path} is neither a file nor a directory")
                start.folders[node][entry.name] = child

        visit(root, ROOT)
        return start


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    start: Start
    effects: tuple[Effect, ...]
    events: tuple[tuple[int, Sync | Promise], ...]
    """Each with the number of effects before it."""
    folders: frozenset[int]
    links: Mapping[int, bytes]

    @property
    def syncs(self) -> list[Sync]:
        return [event for _, event in self.events if isinstance(event, Sync)]


def apply(buffer: bytearray, effect: Effect, data: bytes) -> None:
    """Do a content effect to `buffer`, with `data` in the place of its own (torn, zeros)."""
    if effect.size is not None:
        buffer[:] = buffer[: effect.size].ljust(effect.size, b"\0")
        return
    if len(buffer) < effect.offset:
        buffer.extend(bytes(effect.offset - len(buffer)))
    buffer[effect.offset : effect.offset + len(data)] = data
