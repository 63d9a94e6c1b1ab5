"""The blocking capture: live leaves and small files into one slot, and the draft that describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepfast.capture.layout import Layout, Signature, plan, signature
from stepfast.core.protocols import Copier, Framework, LiveLeaf, TrainState
from stepfast.core.words import StoredFile, round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A complete slot: the files in it and where each lies."""

    files: tuple[StoredFile, ...]
    spans: tuple[tuple[str, int, int], ...]
    """(name, offset in the slot, size)"""


class Capture:
    """Keeps what stays from snapshot to snapshot: the layout, and a prepared copy for each slot."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._static: tuple[LiveLeaf, ...] = ()
        self._dynamic: Signature | None = None
        self._layout: Layout | None = None
        self._copiers: dict[int, Copier] = {}
        self._headed: set[int] = set()

    def bytes_needed(self, state: TrainState, small: Mapping[str, bytes]) -> int:
        """Room for this snapshot, and for small files that grow a while."""
        layout = self._laid_out(state)
        return layout.size + sum(round_up(2 * len(data)) for data in small.values())

    def fits(self, state: TrainState, small: Mapping[str, bytes], slot_bytes: int) -> bool:
        layout = self._laid_out(state)
        return layout.size + sum(round_up(len(data)) for data in small.values()) <= slot_bytes

    def forget_slots(self) -> None:
        """New slots have come: nothing prepared for the old ones holds."""
        self._copiers.clear()
        self._headed.clear()

    def take(
        self,
        state: TrainState,
        small: Mapping[str, bytes],
        *,
        slot: int,
        memory: memoryview,
        instead: Mapping[str, Any],
    ) -> Captured:
        """Copy. `instead` holds copies, made at the boundary, of leaves that Forward has written since."""
        layout = self._laid_out(state)
        if slot not in self._headed:
            for placed in layout.files:
                memory[placed.offset : placed.offset + len(placed.head)] = placed.head
            self._headed.add(slot)
        if (static := self._copiers.get(slot)) is None:
            static = self._copiers[slot] = self._copier(state.static, memory, layout)
        static.run()
        if state.dynamic:
            self._copier(state.dynamic, memory, layout).run()
        if instead:
            replaced = [_with_tensor(leaf, instead[leaf.name]) for leaf in state.static if leaf.name in instead]
            self._copier(replaced, memory, layout).run()
        files = [placed.stored for placed in layout.files]
        spans = [(placed.stored.name, placed.offset, placed.stored.size) for placed in layout.files]
        end = layout.size
        for name, data in small.items():
            memory[end : end + len(data)] = data
            files.append(StoredFile(name=name, size=len(data)))
            spans.append((name, end, len(data)))
            end = round_up(end + len(data))
        return Captured(files=tuple(files), spans=tuple(spans))

    def _copier(self, leaves: Sequence[LiveLeaf], memory: memoryview, layout: Layout) -> Copier:
        ordered = sorted(leaves, key=lambda leaf: layout.places[leaf.name])
        return self._framework.copier(ordered, memory, [layout.places[leaf.name] for leaf in ordered])

    def _laid_out(self, state: TrainState) -> Layout:
        dynamic = signature(state.dynamic)
        if self._layout is None or state.static is not self._static or dynamic != self._dynamic:
            layout = plan((*state.static, *state.dynamic))
            if self._layout is None or layout != self._layout:
                self._headed.clear()
            self._copiers.clear()
            self._layout, self._static, self._dynamic = layout, state.static, dynamic
        return self._layout


def _with_tensor(leaf: LiveLeaf, tensor: Any) -> LiveLeaf:
    return LiveLeaf(
        name=leaf.name,
        key=leaf.key,
        group=leaf.group,
        dtype=leaf.dtype,
        shape=leaf.shape,
        strides=None,
        tensor=tensor,
    )
