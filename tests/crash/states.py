"""Which trees a power cut may leave, at every moment of a history, under two readings of what an fsync does.

    posix    the weakest: an fsync of a file makes its contents durable, an fsync of a directory its names; of
             all other effects any subset may be durable
    ordered  a journal (ext4, xfs): names become durable in the order they were made, and an fsync of anything
             takes with it all names up to its own newest change; contents that were not synced are free

Both take a rename as one effect, and a directory to have one name. A write may be absent, torn in the middle,
or a hole of zeros in its first half, or in all of it. A disk that lies about a flush is not here.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tests.crash.effects import ROOT, Effect, History, Promise, Sync, apply

Reading = Literal["posix", "ordered"]
Fate = Literal["whole", "torn", "late", "zeros"]
Choice = Mapping[int, Fate]
"""What became of each effect that was not durable; one that is not named is absent."""

READINGS: tuple[Reading, ...] = ("posix", "ordered")
DAMAGE: tuple[Fate, ...] = ("torn", "late", "zeros")
SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The moment after an event: effects so far, which of them surely last, what was promised."""

    label: str
    effects: int
    durable: frozenset[int]
    promises: tuple[str, ...]

    def pending(self) -> list[int]:
        return [number for number in range(self.effects) if number not in self.durable]


@dataclass(frozen=True, slots=True)
class Node:
    """One entry of a tree. `number` is the same for two names of one file."""

    kind: Literal["folder", "file", "link"]
    number: int
    content: bytes = b""


Tree = dict[str, Node]


def made_durable(history: History, sync: Sync, reading: Reading) -> set[int]:
    covered = history.effects[: sync.covers]
    if sync.node is None:
        return set(range(len(covered)))
    durable, newest = set(), -1
    for number, effect in enumerate(covered):
        is_folder_of = any(folder == sync.node for folder, _, _ in effect.names)
        is_named = any(node == sync.node for _, _, node in effect.names)
        if effect.node == sync.node or is_folder_of:
            durable.add(number)
        if effect.node == sync.node or is_folder_of or is_named:
            newest = number
    if reading == "ordered":
        durable |= {number for number in range(newest + 1) if covered[number].names}
    return durable


def points(history: History, reading: Reading, *, without: Collection[int] = ()) -> Iterator[Point]:
    """The moments a crash can fall into. `without`: the syncs of these numbers never happened."""
    durable: frozenset[int] = frozenset()
    promises: tuple[str, ...] = ()
    done = syncs = 0
    yield Point(label="before the first call", effects=0, durable=durable, promises=())
    for position, event in history.events:
        for number in range(done, position):
            label = f"after {history.effects[number].label}"
            yield Point(label=label, effects=number + 1, durable=durable, promises=promises)
        done = position
        if isinstance(event, Promise):
            promises = (*promises, event.text)
            label = f"after ACK {event.text}"
        else:
            if syncs not in without:
                durable |= made_durable(history, event, reading)
            label = f"after {event.label}"
            syncs += 1
        yield Point(label=label, effects=done, durable=durable, promises=promises)
    for number in range(done, len(history.effects)):
        label = f"after {history.effects[number].label}"
        yield Point(label=label, effects=number + 1, durable=durable, promises=promises)


def subsets(numbers: list[int], limit: int, extra: int, rng: random.Random) -> Iterator[tuple[int, ...]]:
    """All subsets if there are at most `limit`; else the telling ones and `extra` random ones."""
    if 2 ** len(numbers) <= limit:
        for size in range(len(numbers) + 1):
            yield from itertools.combinations(numbers, size)
        return
    for cut in range(len(numbers) + 1):
        yield tuple(numbers[:cut])
        yield tuple(numbers[cut:])
    for one in numbers:
        yield (one,)
        yield tuple(number for number in numbers if number != one)
    for _ in range(extra):
        share = rng.random()
        yield tuple(number for number in numbers if rng.random() < share)


def choices(
    history: History, point: Point, reading: Reading, *, limit: int, extra: int, rng: random.Random
) -> Iterator[Choice]:
    pending = point.pending()
    names = [number for number in pending if history.effects[number].names]
    contents = [number for number in pending if not history.effects[number].names]
    kept: Iterable[tuple[int, ...]]
    if reading == "posix":
        kept = subsets(pending, limit, extra, rng)
    else:
        prefixes = [tuple(names[:cut]) for cut in range(len(names) + 1)]
        share = max(limit // len(prefixes), 1)
        each = list(dict.fromkeys(subsets(contents, share, -(-extra // len(prefixes)), rng)))
        kept = (prefix + some for prefix in prefixes for some in each)
    for some in dict.fromkeys(kept):
        yield dict.fromkeys(some, "whole")
    for number in contents:
        if not history.effects[number].data:
            continue
        for fate in DAMAGE:
            yield {**dict.fromkeys(pending, "whole"), number: fate}
            yield {**dict.fromkeys([other for other in pending if other < number], "whole"), number: fate}


def damaged(data: bytes, fate: Fate) -> bytes:
    cut = len(data) // 2
    if len(data) >= 2 * SECTOR_BYTES:
        cut = cut // SECTOR_BYTES * SECTOR_BYTES
    match fate:
        case "whole":
            return data
        case "torn":
            return data[:cut]
        case "late":
            return bytes(cut) + data[cut:]
        case "zeros":
            return bytes(len(data))


def tree_after(history: History, point: Point, choice: Choice) -> Tree:
    """The tree a reader finds after a crash at `point` in which `choice` became of what was not durable."""
    start = history.start
    folders = {node: dict(names) for node, names in start.folders.items()}
    buffers: dict[int, bytearray] = {}
    for number in range(point.effects):
        fate = "whole" if number in point.durable else choice.get(number)
        if fate is None:
            continue
        effect = history.effects[number]
        if effect.names:
            rename(folders, effect, history.folders)
        else:
            if effect.node not in buffers:
                buffers[effect.node] = bytearray(start.contents.get(effect.node, b""))
            apply(buffers[effect.node], effect, damaged(effect.data, fate))
    tree: Tree = {}

    def visit(node: int, path: str) -> None:
        for name, child in sorted(folders.get(node, {}).items()):
            full = f"{path}/{name}" if path else name
            if child in history.folders:
                tree[full] = Node("folder", child)
                visit(child, full)
            elif child in history.links:
                tree[full] = Node("link", child, history.links[child])
            else:
                content = bytes(buffers[child]) if child in buffers else start.contents.get(child, b"")
                tree[full] = Node("file", child, content)

    visit(ROOT, "")
    return tree


def rename(folders: dict[int, dict[str, int]], effect: Effect, are_folders: frozenset[int]) -> None:
    """Also where an earlier rename of the same directory was lost: it leaves the name that it really has."""
    for _, _, node in effect.names:
        if node is not None and node in are_folders:
            for names in folders.values():
                for name in [name for name, held in names.items() if held == node]:
                    del names[name]
    for folder, name, node in effect.names:
        if node is None:
            folders.setdefault(folder, {}).pop(name, None)
        else:
            folders.setdefault(folder, {})[name] = node


def digest(tree: Tree) -> bytes:
    """Equal for trees that a reader cannot tell apart (which names are one file is left out)."""
    total = hashlib.blake2b(digest_size=16)
    for path, node in tree.items():
        content = hashlib.blake2b(node.content, digest_size=16).digest()
        total.update(b"\0".join((path.encode("utf-8", "surrogateescape"), node.kind.encode(), content)))
    return total.digest()
