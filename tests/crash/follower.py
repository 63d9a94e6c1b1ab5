"""Keeps the tree, the open files and the processes as the writer saw them, and collects effects.

What each call means is in `calls`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.effects import ROOT, Effect, History, Promise, Start, Sync, apply
from tests.crash.trace import PROCESSES, Call, CannotFollow, unhex


@dataclass(slots=True)
class OpenFile:
    """An open file description: descriptors that were dup'ed or inherited share its position."""

    node: int
    flags: str
    position: int = 0


class Follower:
    """Walks through the calls and keeps the tree and the open files as the writer saw them."""

    def __init__(self, root: Path, start: Start, working_directory: Path) -> None:
        self.root = str(root)
        self.start = start
        self.cwd = str(working_directory)
        self.folders = {node: dict(names) for node, names in start.folders.items()}
        self.sizes = {node: len(data) for node, data in start.contents.items()}
        self.links = dict(start.links)
        self.next_node = 1 + max([*self.folders, *self.sizes, *self.links])
        self.effects: list[Effect] = []
        self.events: list[tuple[int, Sync | Promise]] = []
        self.effects_after: list[int] = []  # per finished call
        self.open: dict[int, dict[int, OpenFile]] = {}
        self.parents: dict[int, tuple[int, bool]] = {}
        self.printed = b""

    # processes and descriptors
    def find_children(self, calls: Sequence[Call]) -> None:
        """Beforehand, because a child may run before its parent's clone returns."""
        for call in calls:
            if call.name in PROCESSES:
                self.parents[int(call.result)] = (call.pid, "CLONE_FILES" in " ".join(call.args))

    def table(self, pid: int) -> dict[int, OpenFile]:
        if pid not in self.open:
            parent, shared = self.parents.get(pid, (0, False))
            inherited = self.table(parent) if parent else {}
            self.open[pid] = inherited if shared else dict(inherited)
        return self.open[pid]

    def file(self, call: Call, argument: str) -> OpenFile | None:
        """The open file behind a descriptor, if it lies below the root."""
        number = re.match(r"\d+", argument)
        if number is None:
            return None
        known = self.table(call.pid).get(int(number[0]))
        if known is None and self.inside(shown_path(argument)) is not None:
            raise CannotFollow(f"{call.name} on a descriptor whose opening was not seen: {shown_path(argument)}")
        return known

    # names
    def inside(self, path: str) -> list[str] | None:
        path = os.path.normpath(path)
        if path == self.root:
            return []
        return path[len(self.root) + 1 :].split("/") if path.startswith(self.root + "/") else None

    def walk(self, parts: Sequence[str]) -> int | None:
        node: int | None = ROOT
        for part in parts:
            node = self.folders.get(node, {}).get(part) if node is not None else None
        return node

    def place(self, call: Call, folder: str | None, path: str) -> tuple[int, str] | None:
        """(directory, name) of a path argument, or None if it lies outside. The root itself is (ROOT, "")."""
        name = os.fsdecode(unhex(path))
        if not name.startswith("/"):
            base = self.file(call, folder) if folder is not None else None
            if base is not None and "/" not in name and name not in ("", ".", ".."):
                return base.node, name
            name = os.path.join(shown_path(folder) if folder is not None else self.cwd, name)
        parts = self.inside(name)
        if parts is None:
            return None
        if not parts:
            return ROOT, ""
        parent = self.walk(parts[:-1])
        if parent is None:
            raise CannotFollow(f"{call.name} {name}: its directory was never seen being made")
        return parent, parts[-1]

    def at(self, place: tuple[int, str]) -> int | None:
        return self.folders[place[0]].get(place[1]) if place[1] else place[0]

    def shown(self, place: tuple[int, str]) -> str:
        """The path of a place, for people."""
        path, (node, name) = [place[1]], place
        while node != ROOT:
            found = [(up, n) for up, names in self.folders.items() for n, child in names.items() if child == node]
            if not found:
                return "(removed)/" + "/".join(reversed(path))
            node, name = found[0]
            path.append(name)
        return "/".join(reversed(path)) or "."

    def shown_node(self, node: int) -> str:
        found = [(up, n) for up, names in self.folders.items() for n, child in names.items() if child == node]
        return self.shown(found[0]) if found else "." if node == ROOT else "(removed)"

    def new(self) -> int:
        self.next_node += 1
        return self.next_node - 1

    # growth
    def rename(self, label: str, *changes: tuple[int, str, int | None]) -> None:
        for folder, name, node in changes:
            if node is None:
                self.folders[folder].pop(name, None)
            else:
                self.folders[folder][name] = node
        self.effects.append(Effect(label=label, names=changes))

    def resize(self, node: int, size: int) -> None:
        self.effects.append(Effect(label=f"size {self.shown_node(node)} to {size}", node=node, size=size))
        self.sizes[node] = size

    def write(self, file: OpenFile, offset: int, data: bytes) -> None:
        if not data:
            return
        label = f"write {self.shown_node(file.node)} {len(data)} bytes at {offset}"
        self.effects.append(Effect(label=label, node=file.node, offset=offset, data=data))
        self.sizes[file.node] = max(self.sizes[file.node], offset + len(data))
        if "SYNC" in file.flags:  # O_SYNC, O_DSYNC: durable when the call returns
            self.sync(file.node, len(self.effects))

    def sync(self, node: int | None, covers: int) -> None:
        name = self.shown_node(node) if node is not None else "everything"
        self.events.append((len(self.effects), Sync(label=f"fsync {name}", node=node, covers=covers)))

    def content(self, node: int) -> bytes:
        buffer = bytearray(self.start.contents.get(node, b""))
        for effect in self.effects:
            if effect.node == node:
                apply(buffer, effect, effect.data)
        return bytes(buffer)

    def covered(self, call: Call) -> int:
        return self.effects_after[call.began_after - 1] if call.began_after else 0

    def history(self) -> History:
        return History(
            start=self.start,
            effects=tuple(self.effects),
            events=tuple(self.events),
            folders=frozenset(self.folders),
            links=self.links,
        )


def shown_path(argument: str) -> str:
    shown = re.search(r"<(.*?)>", argument)
    return os.fsdecode(unhex(shown[1])) if shown and shown[1].startswith("\\x") else argument
