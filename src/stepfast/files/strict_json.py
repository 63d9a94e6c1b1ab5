"""JSON that means one thing only. The standard parser is no validator: it takes names twice, NaN, 1e999, lone
surrogates, and falls over deep nesting.

Raises ValueError; who knows the file's name makes a named error of it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 32
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
# A string (to the end of the data if it is not closed) or a bracket. Possessive, so the time is linear.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def loads(data: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> Any:
    """Parse, or ValueError with the reason."""
    if len(data) > max_bytes:
        raise ValueError(f"{len(data)} bytes of JSON, more than the {max_bytes} allowed")
    if data.startswith(b"\xef\xbb\xbf"):
        raise ValueError("JSON begins with a byte order mark")
    _check_depth(data, max_depth)
    text = data.decode("utf-8")  # UnicodeDecodeError is a ValueError
    value = json.loads(
        text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_integer
    )
    if _SURROGATE.search(data):
        _check_surrogates(value)
    return value


def dumps(value: object, *, indent: int | None = 1) -> bytes:
    """Write what `loads` reads: sorted names, UTF-8. `indent=None` is the compact form.

    Raises:
        ValueError: the value is nothing that JSON can hold; the path to it is named.
    """
    check(value, "$")
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False, indent=indent, separators=separators)
    return text.encode("utf-8")


def check(value: object, path: str) -> None:
    """json.dumps would turn keys to strings, write tuples of anything and numbers nobody can read back."""
    if value is None or value is True or value is False:
        return
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{path}: a text with a lone surrogate") from None
    elif isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise ValueError(f"{path}: an integer that needs more than 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path}: {value} is no JSON number")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{path}: the key {key!r} is not a text")
            check(key, path)
            check(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check(item, f"{path}[{number}]")
    else:
        raise ValueError(f"{path}: JSON has no {type(value).__name__}")


def _check_depth(data: bytes, max_depth: int) -> None:
    depth = 0
    for token in _TOKEN.finditer(data):
        mark = data[token.start()]
        if mark in b"[{":
            depth += 1
            if depth > max_depth:
                raise ValueError(f"JSON nested deeper than {max_depth}")
        elif mark in b"]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the name {ascii(key)[:100]} stands twice in one JSON object")
            seen.add(key)
    return result


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _float(text: str) -> float:
    value = float(text) if len(text) <= 400 else math.inf
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large or too long")
    return value


def _integer(text: str) -> int:
    value = int(text) if len(text) <= 20 else _INT_MAX + 1
    if not _INT_MIN <= value <= _INT_MAX:
        raise ValueError(f"the integer {text[:40]} needs more than 64 bits")
    return value


def _check_surrogates(value: Any) -> None:
    if isinstance(value, str):
        value.encode("utf-8")  # UnicodeEncodeError is a ValueError
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_surrogates(key)
            _check_surrogates(item)
    elif isinstance(value, list):
        for item in value:
            _check_surrogates(item)
