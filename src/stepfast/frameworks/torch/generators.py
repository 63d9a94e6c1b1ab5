"""Finds the random generators that a dataset, a collate function or a sampler holds, by a bounded walk.

The walk follows attributes, lists, dictionaries, closures, partials, and the functions and generators of the
same module that the code names. It calls no code of the objects it meets. The global generators are not its
business.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from stepfast.core.errors import StateMismatch
from stepfast.frameworks.torch import rng

MAX_OBJECTS = 1000
MAX_ITEMS = 64
MAX_DEPTH = 8

_LEAVES = (
    str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType, types.BuiltinFunctionType,
    range, torch.Tensor, torch.dtype, torch.device, np.ndarray, np.generic,
)  # fmt: skip
_SKIPPED_ATTRIBUTES: dict[type, frozenset[str]] = {DataLoader: frozenset({"_iterator"})}
"""The iterator of persistent workers holds queues and processes, and nothing that draws."""

_ENTRY_POINTS = ("__getitem__", "__getitems__", "__call__", "__iter__", "forward")


def search(roots: Mapping[str, object], *, skip: Sequence[object] = ()) -> tuple[dict[str, Any], bool]:
    """Every generator below `roots` by its path, each once; and whether the walk came to its end."""
    found: dict[str, Any] = {}
    seen = {id(item) for item in skip} | _global_generators()
    waiting: deque[tuple[str, object, int]] = deque((name, root, 0) for name, root in roots.items())
    count = 0
    complete = True
    while waiting:
        name, item, depth = waiting.popleft()
        if isinstance(item, _LEAVES) or id(item) in seen:
            continue
        seen.add(id(item))
        if rng.is_generator(item):
            found[name] = item
            continue
        count += 1
        if count > MAX_OBJECTS or depth >= MAX_DEPTH:
            complete = False
            if count > MAX_OBJECTS:
                break
            continue
        waiting.extend((child_name, child, depth + 1) for child_name, child in _children(name, item))
    return found, complete


class FoundGenerators:
    """The generators below some roots, to be stored and put back by their paths."""

    def __init__(self, roots: Mapping[str, object], *, skip: Sequence[object] = ()) -> None:
        self._roots = dict(roots)
        self._skip = tuple(skip)
        self._found: dict[str, Any] = {}
        self.complete = True
        self.search()

    def search(self) -> None:
        """Look again: generators are made and replaced as a run goes on."""
        self._found, self.complete = search(self._roots, skip=self._skip)

    def names(self) -> list[str]:
        return list(self._found)

    def capture(self) -> dict[str, object]:
        return {name: rng.capture_generator(generator) for name, generator in self._found.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put every generator of `state` back. Raises StateMismatch when one no longer exists."""
        missing = [name for name in state if name not in self._found]
        if missing:
            raise StateMismatch(
                f"the checkpoint holds the random generator {missing[0]}, which the script has not made",
                hint="make it before the loop starts (in __init__), not when the first sample is read",
            )
        for name, stored in state.items():
            rng.restore_generator(self._found[name], stored)


def _children(name: str, item: Any) -> Iterator[tuple[str, object]]:
    if isinstance(item, dict):
        for place, (key, value) in enumerate(item.items()):
            if place == MAX_ITEMS:
                return
            yield f"{name}[{key!r}]" if isinstance(key, (str, int)) else f"{name}[#{place}]", value
        return
    if isinstance(item, (list, tuple)):
        for place, value in enumerate(item[:MAX_ITEMS]):
            yield f"{name}[{place}]", value
        return
    if isinstance(item, types.MethodType):
        yield name, item.__self__
        yield name, item.__func__
    elif isinstance(item, types.FunctionType):
        yield from _of_function(name, item)
    elif isinstance(item, functools.partial):
        yield f"{name}.func", item.func
        yield f"{name}.args", item.args
        yield f"{name}.keywords", item.keywords
    else:
        yield from _of_instance(name, item)


def _of_instance(name: str, item: object) -> Iterator[tuple[str, object]]:
    kind = type(item)
    skipped = next((names for owner, names in _SKIPPED_ATTRIBUTES.items() if issubclass(kind, owner)), frozenset())
    attributes = getattr(item, "__dict__", None)
    if type(attributes) is dict:
        for key, value in attributes.items():
            if key not in skipped:
                yield f"{name}.{key}", value
    for owner in kind.__mro__:
        for slot in _slots(owner):
            member = owner.__dict__.get(slot)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield f"{name}.{slot}", member.__get__(item)
                except AttributeError:  # declared, never set
                    continue
    for entry in _ENTRY_POINTS:
        function = getattr(kind, entry, None)
        if isinstance(function, types.FunctionType):
            yield f"{name}.{entry}", function


def _slots(owner: type) -> tuple[str, ...]:
    slots = owner.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _of_function(name: str, function: types.FunctionType) -> Iterator[tuple[str, object]]:
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{name}.{variable}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield f"{name}.defaults", function.__defaults__
    yield f"{name}.defaults", function.__kwdefaults__
    module = function.__module__
    for variable in function.__code__.co_names:
        value = function.__globals__.get(variable)
        if rng.is_generator(value) or (isinstance(value, types.FunctionType) and value.__module__ == module):
            # The script has another module name inside workers that were spawned.
            yield f"{'__main__' if module == '__mp_main__' else module}.{variable}", value


def _global_generators() -> set[int]:
    known: list[object] = [torch.default_generator, getattr(random.random, "__self__", None)]
    if "numpy.random" in sys.modules:
        known.append(getattr(np.random.random_sample, "__self__", None))
    return {id(item) for item in known}
