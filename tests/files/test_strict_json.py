"""JSON that means one thing only."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.files import strict_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda children: st.lists(children) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), children),
    max_leaves=20,
)

REFUSED = {
    "a name twice": b'{"a": 1, "a": 1}',
    "a name twice, deep": b'{"x": [{"a": 1, "\\u0061": 2}]}',
    "NaN": b"[NaN]",
    "Infinity": b"[-Infinity]",
    "1e999": b"[1e999]",
    "-1e999": b"[-1e999]",
    "a float of 5,000 digits": b"[" + b"1" * 5000 + b".0]",
    "an integer of 5,000 digits": b"[" + b"1" * 5000 + b"]",
    "2^64": b"[18446744073709551616]",
    "below -2^63": b"[-9223372036854775809]",
    "byte order mark": b"\xef\xbb\xbf[]",
    "UTF-16": "[]".encode("utf-16"),
    "no UTF-8": b'["\xff"]',
    "raw surrogate": b'["\xed\xa0\x80"]',
    "lone surrogate": b'["\\ud800"]',
    "lone surrogate in a name": b'{"\\uDC00": 1}',
    "depth 33": b"[" * 33 + b"]" * 33,
    "depth 100,000": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000,
    "something after it": b"[] []",
    "nothing": b"",
    "a string that is not closed": b'["' + b'\\"' * 100_000,
    "quotes": b'"' * 200_001,
    "control character": b'["\x00"]',
    "comment": b"[1] // one",
    "comma at the end": b"[1,]",
    "too long": b" " * 1_000_001,
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_refuses_fast(data: bytes) -> None:
    start = time.perf_counter()
    with pytest.raises(ValueError):
        strict_json.loads(data, max_bytes=1_000_000)
    assert time.perf_counter() - start < 1


def test_takes_what_is_just_allowed() -> None:
    assert strict_json.loads(b"[" * 32 + b"]" * 32, max_bytes=64)
    assert strict_json.loads(b'["[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "\\""]', max_bytes=100)
    assert strict_json.loads(b"[18446744073709551615, -9223372036854775808]", max_bytes=100) == [2**64 - 1, -(2**63)]
    assert strict_json.loads(b'"\\ud83d\\ude00"', max_bytes=100) == "\N{GRINNING FACE}"
    with pytest.raises(ValueError, match="deeper"):
        strict_json.loads(b"[[1]]", max_bytes=64, max_depth=1)


@given(VALUES)
def test_reads_what_it_writes(value: Any) -> None:
    for indent in (1, None):
        data = strict_json.dumps(value, indent=indent)
        again = strict_json.loads(data, max_bytes=1 << 20)
        assert again == value
        assert strict_json.dumps(again, indent=indent) == data
        assert json.loads(data) == value


@given(st.binary(max_size=40))
def test_any_bytes_are_taken_or_a_value_error(data: bytes) -> None:
    try:
        strict_json.loads(data, max_bytes=100)
    except ValueError:
        return
    json.loads(data)


@pytest.mark.parametrize(
    "value", [float("nan"), {1: 2}, {"a": {2, 3}}, 2**64, "\ud800", {"\ud800": 1}, b"x", [object()]]
)
def test_writes_nothing_it_would_not_read(value: Any) -> None:
    with pytest.raises(ValueError, match=r"\$"):
        strict_json.dumps({"at": value})
