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
        state, gradients = without_gradients(record.state)
        return cls(record=replace(record, state=state), gradients=gradients)

    def whole(self) -> Record | None:
        """The record with its gradients; None when one of them is gone."""
        state = with_gradients(self.record.state, self.gradients)
        return None if state is None else replace(self.record, state=state)


Gradients = Mapping[str, "weakref.ref[Any]"]


def without_gradients(state: TrainState) -> tuple[TrainState, Gradients]:
    """The state with gradients only referred to."""
    gradients = {leaf.name: weakref.ref(leaf.tensor) for leaf in state.dynamic if _is_gradient(leaf)}
    if not gradients:
        return state, gradients
    dynamic = tuple(replace(leaf, tensor=None) if _is_gradient(leaf) else leaf for leaf in state.dynamic)
    return replace(state, dynamic=dynamic), gradients


def with_gradients(state: TrainState, gradients: Gradients) -> TrainState | None:
    """The state as it was; None when the script has dropped a gradient."""
    live = {name: reference() for name, reference in gradients.items()}
    if any(tensor is None for tensor in live.values()):
        return None
    if not live:
        return state
    return replace(
        state, dynamic=tuple(replace(leaf, tensor=live.get(leaf.name, leaf.tensor)) for leaf in state.dynamic)
    )


def _is_gradient(leaf: LiveLeaf) -> bool:
    return leaf.name.startswith("grad.")
