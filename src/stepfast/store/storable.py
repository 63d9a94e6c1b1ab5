"""What a reader will take, asked before it is written: loop.json, and values that go into it or into the manifest."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

import msgspec

from stepfast.core.errors import StateNotStorable, UsageError
from stepfast.files import strict_json
from stepfast.store.manifest_json import MAX_BYTES

LOOP_DEPTH = 200
"""Levels of JSON that a reader of loop.json takes. Far below where recursion ends, far above what the codec writes."""
MAX_LOOP_BYTES = 512 << 20
MAX_SEGMENT_BYTES = 4 << 30
"""Of a small file that is read as a whole. Its size is compared with the manifest's before a byte is read."""

MAX_VALUE_DEPTH = strict_json.MAX_DEPTH - 4
"""Of one value inside the manifest."""
MAX_VALUE_BYTES = MAX_BYTES // 4

_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LEVELS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def encode_loop(loop: Any) -> bytes:
    """loop.json.

    Raises:
        StateNotStorable: a reader would refuse it; what is too big or too deep is named.
    """
    try:
        data = msgspec.json.encode(loop)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise StateNotStorable(f"the loop's state cannot be written: {error or type(error).__name__}") from error
    if len(data) > MAX_LOOP_BYTES:
        path, size = _largest(loop)
        raise StateNotStorable(
            f"loop.json would have {len(data):,} bytes, more than the {MAX_LOOP_BYTES:,} that are read back: "
            f"{path} alone takes {size:,}",
            hint="keep large values as tensors or arrays: those are stored beside it",
        )
    if _depth(data) > LOOP_DEPTH:
        raise StateNotStorable(
            f"{_deep_path(loop)} is nested deeper than the {LOOP_DEPTH} levels that are read back",
            hint="keep a flat value instead",
        )
    return data


def check_storable(value: object, path: str) -> None:
    """Whether a value given to Run (hyperparameters, a setting) can stand in the manifest; `path` names it.

    Raises:
        UsageError: it cannot, and why. Without this the first save would fail.
    """
    try:
        if _is_deeper(value, MAX_VALUE_DEPTH):
            raise ValueError(f"{path}: nested deeper than {MAX_VALUE_DEPTH} levels, or it contains itself")
        strict_json.check(value, path)
        size = len(strict_json.dumps(value, indent=None))
        if size > MAX_VALUE_BYTES:
            raise ValueError(f"{path}: {size:,} bytes of JSON, more than the {MAX_VALUE_BYTES:,} allowed")
    except ValueError as error:
        shown = str(error).encode("ascii", "backslashreplace").decode()
        raise UsageError(
            f"{shown}: it cannot be stored", hint="give texts, numbers, lists and dicts of them"
        ) from error


def _depth(data: bytes) -> int:
    """Of JSON that was just encoded, brackets in texts left out. The loop waits: a strict parse would cost far more."""
    if data.count(b"[") + data.count(b"{") <= LOOP_DEPTH:
        return 0
    brackets = _TEXT.sub(b"", data).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_LEVELS.__getitem__, brackets)))


def _children(value: object, path: str) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [(f"{path}.{key}", item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{path}[{number}]", item) for number, item in enumerate(value)]
    return []


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list | tuple):
        return False
    return levels == 0 or any(_is_deeper(item, levels - 1) for _, item in _children(value, ""))


def _deep_path(value: object) -> str:
    """Where it gets too deep, from the outside: enough to know whose value it is."""
    path, levels = "loop", LOOP_DEPTH
    while (
        deeper := next((one for one in _children(value, path) if _is_deeper(one[1], levels - 1)), None)
    ) and levels > LOOP_DEPTH - 6:
        (path, value), levels = deeper, levels - 1
    return path


def _largest(value: object) -> tuple[str, int]:
    """The value that takes most of it: descends while one child has more than half."""
    path, size = "loop", len(msgspec.json.encode(value))
    while True:
        sizes = [(len(msgspec.json.encode(item)), name, item) for name, item in _children(value, path)[:1000]]
        found = max(sizes, key=lambda one: one[0], default=None)
        if found is None or found[0] * 2 < size:
            return path, size
        size, path, value = found
