"""Where every leaf and every small file lies in a slot. A snapshot is byte for byte the files that will lie on disk.

The layout is a version: it changes when leaves appear, vanish or change shape, and only then are headers built.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from stepfast.core.protocols import LiveLeaf
from stepfast.core.words import DTYPE_BYTES, Leaf, StoredFile, round_up
from stepfast.store.safetensors import build_header

Signature = tuple[tuple[str, str, tuple[int, ...], tuple[int, ...] | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A file and its place in the slot. `head` is what is written once: a header, or a whole index."""

    stored: StoredFile
    offset: int
    head: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All tensor files of a snapshot; small files follow at `size`."""

    files: tuple[Placed, ...]
    places: dict[str, int]
    """Leaf name -> offset of its data in the slot."""
    size: int


def signature(leaves: Sequence[LiveLeaf]) -> Signature:
    return tuple((leaf.name, leaf.dtype, leaf.shape, leaf.strides) for leaf in leaves)


def plan(leaves: Sequence[LiveLeaf]) -> Layout:
    """Files by group, leaves ordered so that each is aligned to its element and small ones lie together."""
    groups: dict[str, list[LiveLeaf]] = {}
    for leaf in leaves:
        groups.setdefault(leaf.group, []).append(leaf)
    names = _file_names(groups)
    files: list[Placed] = []
    places: dict[str, int] = {}
    end = 0
    for group, name in names.items():
        members = sorted(groups[group], key=lambda leaf: (-DTYPE_BYTES[leaf.dtype], leaf.dtype, _is_big(leaf)))
        metadata = {"format": "pt"} if group in ("model", "frozen") else {}
        header, offsets, size = build_header([(m.key, m.dtype, m.shape) for m in members], metadata)
        stored = tuple(
            Leaf(
                name=member.name,
                key=member.key,
                dtype=member.dtype,
                shape=member.shape,
                strides=member.strides,
                offset=offset,
                size=_size(member),
            )
            for member, offset in zip(members, offsets, strict=True)
        )
        places |= {leaf.name: end + leaf.offset for leaf in stored}
        files.append(Placed(stored=StoredFile(name=name, size=size, leaves=stored), offset=end, head=header))
        end = round_up(end + size)
    if "frozen" in names and "model" in names:
        index = _index(files[: len([g for g in names if g in ("model", "frozen")])])
        stored_index = StoredFile(name="model.safetensors.index.json", size=len(index))
        files.append(Placed(stored=stored_index, offset=end, head=index))
        end = round_up(end + len(index))
    return Layout(files=tuple(files), places=places, size=end)


def _file_names(groups: dict[str, list[LiveLeaf]]) -> dict[str, str]:
    """Group -> file. Frozen parameters have a file of their own, so that it can stay a hard link."""
    if "model" in groups and "frozen" in groups:
        names = {"model": "model-00001-of-00002.safetensors", "frozen": "model-00002-of-00002.safetensors"}
    else:
        names = {group: "model.safetensors" for group in ("model", "frozen") if group in groups}
    return names | {group: f"{group}.safetensors" for group in ("optimizer", "state") if group in groups}


def _index(files: Sequence[Placed]) -> bytes:
    weights = {leaf.key: placed.stored.name for placed in files for leaf in placed.stored.leaves}
    total = sum(leaf.size for placed in files for leaf in placed.stored.leaves)
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weights}, indent=1).encode()


def _size(leaf: LiveLeaf) -> int:
    size = DTYPE_BYTES[leaf.dtype]
    for length in leaf.shape:
        size *= length
    return size


def _is_big(leaf: LiveLeaf) -> bool:
    return _size(leaf) > 64 * 1024
