"""What samplers of the user's own carry from epoch to epoch: a counter, a list that is shuffled in place.

Of such a sampler its `state_dict` counts or, where it has none, its plain attributes: those that have moved since
the loader was handed over. All others are as the script makes them, so a setting changed on purpose stays changed.
Random generators are `generators`; what a sampler hides elsewhere is found by the digest of the order.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

MAX_INTEGERS = 1 << 20
"""Longer lists are not stored."""
MAX_INLINE = 64
PROBED = 16
MAX_DEPTH = 8

_STOCK = (BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, tuple, range)
_SCALARS = (bool, int, float, str, type(None))


class SamplerState:
    """The state of the samplers below a loader, to be stored and put back."""

    def __init__(self, order: object) -> None:
        self._samplers: dict[str, _Attributes | _OwnMethods] = {
            place: _OwnMethods(sampler) if _has_methods(sampler) else _Attributes(sampler)
            for place, sampler in _walk(order)
            if type(sampler) not in _STOCK
        }

    def capture(self, *, whole: bool = False) -> dict[str, object]:
        """The state now. Long lists are looked at in a few places, unless `whole`."""
        return {
            place: {"class": type(one.sampler).__qualname__, "state": one.capture(whole)}
            for place, one in self._samplers.items()
        }

    def restore(self, state: Mapping[str, Any], *, in_epoch: bool = False) -> None:
        """Put it back. A sampler's own methods are left alone `in_epoch`: they may begin the epoch anew."""
        for place, one in self._samplers.items():
            stored = state.get(place)
            if stored is None or stored["class"] != type(one.sampler).__qualname__:
                continue  # exchanged on purpose
            if isinstance(one, _Attributes) or not in_epoch:
                one.restore(stored["state"])


class _OwnMethods:
    """A sampler with `state_dict` and `load_state_dict`."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def capture(self, whole: bool) -> Any:
        return copy.deepcopy(self.sampler.state_dict())

    def restore(self, state: Any) -> None:
        self.sampler.load_state_dict(copy.deepcopy(state))


@dataclass(slots=True)
class _Seen:
    probe: object
    stored: Any


class _Attributes:
    """A sampler's plain attributes. A list that is the sampler itself is the attribute without a name."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self._seen: dict[str, _Seen] = {}
        self._moved: set[str] = set()
        self._look(whole=True)
        self._moved.clear()
        self._first = {name: seen.stored for name, seen in self._seen.items()}

    def capture(self, whole: bool) -> dict[str, object]:
        self._look(whole)
        return {name: self._seen[name].stored for name in sorted(self._moved)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._look(whole=True)
        unmoved = {name: self._first[name] for name in self._moved & self._first.keys()}
        for name, stored in (unmoved | dict(state)).items():
            seen = self._seen.get(name)
            if seen is None or not _equal(seen.stored, stored):
                self._put(name, _thawed(stored))
        self._look(whole=True)
        self._moved.update(name for name in state if name in self._seen)

    def _values(self) -> dict[str, Any]:
        return {"": self.sampler} if type(self.sampler) is list else getattr(self.sampler, "__dict__", {})

    def _look(self, whole: bool) -> None:
        for name, value in self._values().items():
            seen, probe = self._seen.get(name), _probe(value)
            if seen is not None and probe is not None and probe == seen.probe and (not whole or probe[0] in _SCALARS):
                continue
            stored = None if probe is None else _stored(value)
            if stored is None:  # not plain, or no longer
                self._seen.pop(name, None)
                self._moved.discard(name)
            elif seen is None or not _equal(seen.stored, stored):
                self._seen[name] = _Seen(probe, stored)
                self._moved.add(name)
            else:
                seen.probe = probe

    def _put(self, name: str, value: Any) -> None:
        """In place where that is possible: the sampler's other references keep seeing the same object."""
        present = self._values().get(name)
        if type(present) is list and type(value) is list:
            present[:] = value
        elif isinstance(present, (np.ndarray, torch.Tensor)) and _fits(present, value):
            present[...] = value
        else:
            self._values()[name] = value


def _walk(order: Any) -> Iterator[tuple[str, Any]]:
    place = "order"
    for _ in range(MAX_DEPTH):
        yield place, order
        attributes = getattr(order, "__dict__", {})
        below = next((name for name in ("batch_sampler", "sampler") if name in attributes), None)
        if below is None:
            return
        place, order = f"{place}.{below}", attributes[below]


def _has_methods(sampler: Any) -> bool:
    # Those of torchdata say where in an epoch the sampler is: one that has just ended would begin at its end.
    foreign = type(sampler).__module__.partition(".")[0] == "torchdata"
    return not foreign and hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")


def _probe(value: Any) -> tuple[object, ...] | None:
    """Little that changes when the value does; None where the value cannot be stored."""
    kind, identity = type(value), id(value)
    if kind in _SCALARS:
        return kind, value
    if kind is list or kind is tuple:
        places = tuple(value[:: max(1, len(value) // PROBED)])
        plain = len(value) <= MAX_INTEGERS and all(type(item) is int for item in places)
        return (kind, identity, len(value), places) if plain else None
    if kind is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided:
        value = value.detach().numpy() if value.dtype in _INTEGER_TENSORS else None
    if type(value) is np.ndarray and value.dtype.kind in "biu" and value.size <= MAX_INTEGERS:
        flat = value.reshape(-1)
        return kind, identity, value.shape, flat[:: max(1, flat.size // PROBED)].tobytes()
    return None


def _stored(value: Any) -> Any:
    """As the codec takes it; a copy. None where it cannot be stored."""
    kind = type(value)
    if kind is list or kind is tuple:
        if any(type(item) is not int for item in value):
            return None
        if len(value) <= MAX_INLINE:
            return "value", kind(value)
        try:
            return kind.__name__, np.frombuffer(array("q", value), dtype=np.int64)
        except OverflowError:
            return None
    if kind is torch.Tensor:
        return "value", value.detach().clone()
    return "value", value.copy() if kind is np.ndarray else value


def _thawed(stored: Any) -> Any:
    kind, value = stored
    if kind == "value":
        return copy.deepcopy(value)
    return tuple(value.tolist()) if kind == "tuple" else value.tolist()


def _equal(one: Any, other: Any) -> bool:
    (kind, value), (other_kind, other_value) = one, other
    if kind != other_kind or type(value) is not type(other_value):
        return False
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return _fits(value, other_value) and bool((value == other_value).all())
    return bool(value == other_value)


def _fits(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one.shape == other.shape and one.dtype == other.dtype


_INTEGER_TENSORS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
