"""The train state at a boundary, and how it is kept until the next one."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stepfast.core.protocols import LiveLeaf, TrainState
from stepfast.core.words import Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The train state at a boundary: collected, small moving parts copied, nothing else copied."""

    cursor: Cursor
    state: TrainState
    versions: list[object]
    buffers: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecord:
    """A record for later. It must not keep gradients alive that the script drops in the meantime: that would cost
    the memory of all of them once more."""

    record: Record
    gradients: Mapping[str, weakref.ref[Any]]

    @classmethod
    def of(cls, record: Record) -> KeptRecord:
        state = record.state
        gradients = {leaf.name: weakref.ref(leaf.tensor) for leaf in state.dynamic if _is_gradient(leaf)}
        if gradients:
            dynamic = tuple(replace(leaf, tensor=None) if _is_gradient(leaf) else leaf for leaf in state.dynamic)
            record = replace(record, state=replace(state, dynamic=dynamic))
        return cls(record=record, gradients=gradients)

    def whole(self) -> Record | None:
        """The record with its gradients; None when one of them is gone."""
        if not self.gradients:
            return self.record
        live = {name: reference() for name, reference in self.gradients.items()}
        if any(tensor is None for tensor in live.values()):
            return None
        state = self.record.state
        dynamic = tuple(replace(leaf, tensor=live.get(leaf.name, leaf.tensor)) for leaf in state.dynamic)
        return replace(self.record, state=replace(state, dynamic=dynamic))


def _is_gradient(leaf: LiveLeaf) -> bool:
    return leaf.name.startswith("grad.")
