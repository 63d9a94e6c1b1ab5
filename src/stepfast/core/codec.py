"""The one typed codec: values of the train state to and from strict JSON, without pickle.

A plain `{"30": 1}` cannot say that its key was a number; here every value that JSON alone would change is written
as a tagged object `{"$": kind, "v": payload}`. The order of dictionaries is kept. Tensors and arrays are not JSON:
the framework's `Foreign` takes them out into leaves and puts them back.
"""

from __future__ import annotations

import base64
import functools
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol

from stepfast.core.errors import Damaged, StateNotStorable

MAX_DEPTH = 24
"""Levels of JSON, tags included: with those of the file around it, a strict reader takes all that is written."""
_REMEMBERED_BYTES = 16 << 10
_INT64 = range(-(2**63), 2**63)
_FACTORIES: dict[str, Callable[[], Any]] = {
    "int": int, "float": float, "list": list, "dict": dict, "set": set, "str": str,
}  # fmt: skip


class Foreign(Protocol):
    """Values of a framework: tensors, arrays, dtypes."""

    def encode(self, value: object, path: str) -> dict[str, Any] | None:
        """A tagged object, or None when the value is not of this framework."""

    def decode(self, kind: str, tagged: dict[str, Any]) -> object:
        """The value back; raises KeyError for a kind it does not know."""


class NoForeign:
    """For state that holds no tensors."""

    def encode(self, value: object, path: str) -> dict[str, Any] | None:
        return None

    def decode(self, kind: str, tagged: dict[str, Any]) -> object:
        raise KeyError(kind)


def encode(value: object, path: str, foreign: Foreign, _depth: int = 0) -> Any:
    """`value` as JSON values; `path` names it in an error."""
    if value is None or value is True or value is False:
        return value
    if _depth > MAX_DEPTH:
        raise StateNotStorable(
            f"{path} is nested more than {MAX_DEPTH} levels deep",
            hint="an object that contains itself cannot be stored; keep a flat value instead",
        )
    kind = type(value)
    if kind is str:
        return _encode_str(value)  # type: ignore[arg-type]
    if kind is int:
        return value if value in _INT64 else _tag("int", hex(value))  # type: ignore[arg-type]
    if kind is float:
        return value if math.isfinite(value) else _tag("float", struct.pack("<d", value).hex())  # type: ignore[arg-type]
    if kind is bytes and len(value) <= _REMEMBERED_BYTES:  # type: ignore[arg-type]
        return _tag("bytes", _base64(value))
    if kind in (bytes, bytearray):
        return _tag(kind.__name__, base64.b64encode(value).decode())  # type: ignore[arg-type]
    if kind is list:
        return [encode(v, f"{path}[{i}]", foreign, _depth + 1) for i, v in enumerate(value)]  # type: ignore[arg-type, var-annotated]
    if isinstance(value, dict) and (tagged := _encode_dict(value, path, foreign, _depth)) is not None:
        return tagged
    if kind is tuple:
        return _tag("tuple", [encode(v, f"{path}[{i}]", foreign, _depth + 2) for i, v in enumerate(value)])  # type: ignore[arg-type, var-annotated]
    if kind in (set, frozenset):
        items = [encode(v, f"{path}{{}}", foreign, _depth + 2) for v in value]  # type: ignore[attr-defined]
        return _tag(kind.__name__, sorted(items, key=repr))
    if kind is deque:
        items = [encode(v, f"{path}[{i}]", foreign, _depth + 2) for i, v in enumerate(value)]  # type: ignore[arg-type, var-annotated]
        return _tag("deque", items) | {"maxlen": value.maxlen}  # type: ignore[attr-defined]
    if kind is complex:
        return _tag("complex", struct.pack("<dd", value.real, value.imag).hex())  # type: ignore[attr-defined]
    if kind in (range, slice):
        parts = [value.start, value.stop, value.step]  # type: ignore[attr-defined]
        return _tag(kind.__name__, [encode(p, path, foreign, _depth + 2) for p in parts])
    if (tagged := foreign.encode(value, path)) is not None:
        return tagged
    raise StateNotStorable(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored",
        hint="keep numbers, strings, lists, dicts, tensors or arrays there, "
        "or hand the object over as extra= if it has state_dict and load_state_dict",
    )


@functools.lru_cache(maxsize=32)
def _base64(value: bytes) -> str:
    """States of random generators come again step after step; most of them have not moved."""
    return base64.b64encode(value).decode()


def decode(value: Any, foreign: Foreign) -> Any:
    """The value that `encode` was given. `value` comes from a strict reader, so its depth is bounded."""
    if isinstance(value, list):
        return [decode(v, foreign) for v in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {k: decode(v, foreign) for k, v in value.items()}
    kind = value["$"]
    try:
        if (plain := _DECODERS.get(kind)) is not None:
            return plain(value["v"])
        if (nested := _NESTED.get(kind)) is not None:
            return nested(decode(value["v"], foreign), value)
        return foreign.decode(kind, value)
    except (KeyError, ValueError, TypeError, struct.error) as error:
        raise Damaged(f"a stored value of kind {kind!r} cannot be read: {error}") from error


def _tag(kind: str, payload: Any) -> dict[str, Any]:
    return {"$": kind, "v": payload}


def _encode_str(value: str) -> Any:
    try:
        value.encode()
        return value
    except UnicodeEncodeError:
        return _tag("str", base64.b64encode(value.encode("utf-8", "surrogatepass")).decode())


def _encode_dict(value: dict[Any, Any], path: str, foreign: Foreign, depth: int) -> dict[str, Any] | None:
    kind = type(value)
    if kind is dict and "$" not in value and all(type(k) is str and k.isprintable() for k in value):
        return {k: encode(v, f"{path}.{k}", foreign, depth + 1) for k, v in value.items()}
    pairs = [
        [encode(k, f"{path} key", foreign, depth + 3), encode(v, f"{path}[{k!r}]", foreign, depth + 3)]
        for k, v in value.items()
    ]
    if kind is dict:
        return _tag("dict", pairs)
    if kind in (Counter, OrderedDict):
        return _tag(kind.__name__, pairs)
    if kind is defaultdict:
        factory = value.default_factory  # type: ignore[attr-defined]
        name = None if factory is None else getattr(factory, "__name__", "")
        if name is None or _FACTORIES.get(name) is factory:
            return _tag("defaultdict", pairs) | {"factory": name}
    return None


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda v: int(v, 16),
    "float": lambda v: struct.unpack("<d", bytes.fromhex(v))[0],
    "complex": lambda v: complex(*struct.unpack("<dd", bytes.fromhex(v))),
    "bytes": lambda v: base64.b64decode(v, validate=True),
    "bytearray": lambda v: bytearray(base64.b64decode(v, validate=True)),
    "str": lambda v: base64.b64decode(v, validate=True).decode("utf-8", "surrogatepass"),
}

_NESTED: dict[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    "tuple": lambda items, _: tuple(items),
    "set": lambda items, _: set(items),
    "frozenset": lambda items, _: frozenset(items),
    "deque": lambda items, tagged: deque(items, maxlen=tagged["maxlen"]),
    "range": lambda items, _: range(*items),
    "slice": lambda items, _: slice(*items),
    "dict": lambda items, _: dict(items),
    "Counter": lambda items, _: Counter(dict(items)),
    "OrderedDict": lambda items, _: OrderedDict(items),
    "defaultdict": lambda items, tagged: defaultdict(
        None if tagged["factory"] is None else _FACTORIES[tagged["factory"]], dict(items)
    ),
}
