"""The typed codec: what comes back is what went in, bit for bit and type for type, over strict JSON."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.core.codec import MAX_DEPTH, NoForeign, decode, encode
from stepfast.core.errors import Damaged, StateNotStorable
from stepfast.files import strict_json

FOREIGN = NoForeign()


def there_and_back(value: object) -> Any:
    """The way of loop.json: written by msgspec, read by the strict reader."""
    raw = msgspec.json.encode(encode(value, "state", FOREIGN))
    return decode(strict_json.loads(raw, max_bytes=1 << 20), FOREIGN)


def same(a: Any, b: Any) -> bool:
    """Equal with types, bits of floats and the order of dictionaries."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return struct.pack("<dd", a.real, a.imag) == struct.pack("<dd", b.real, b.imag)
    if isinstance(a, dict):
        if isinstance(a, defaultdict) and a.default_factory is not b.default_factory:
            return False
        pairs = zip(a.items(), b.items(), strict=False)
        return len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, deque) and a.maxlen != b.maxlen:
        return False
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    return bool(a == b)


def any_float() -> st.SearchStrategy[float]:
    return st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", bits.to_bytes(8, "little"))[0])


hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(st.characters(exclude_categories=())),
    st.binary(max_size=20),
    st.floats(allow_nan=False),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.frozensets(st.integers(), max_size=3),
)
plain = st.one_of(
    hashable,
    any_float(),
    st.complex_numbers(),
    st.binary(max_size=20).map(bytearray),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3)),
    st.builds(slice, st.none() | st.integers(), st.integers(), st.none()),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.dictionaries(hashable, inner, max_size=4)
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        pairs,
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        pairs.map(OrderedDict),
        st.builds(
            lambda items, maxlen: deque(items, maxlen), st.lists(inner, max_size=4), st.none() | st.integers(4, 9)
        ),
        st.builds(lambda factory, items: defaultdict(factory, items), st.sampled_from([None, int, list, dict]), pairs),
        st.dictionaries(st.integers() | st.text(max_size=3), st.integers(), max_size=4).map(Counter),
        st.sets(st.integers() | st.text(max_size=3), max_size=4),
    )


@settings(max_examples=400, deadline=None)
@given(st.recursive(plain, containers, max_leaves=12))
def test_any_value(value: Any) -> None:
    assert same(there_and_back(value), value)


@pytest.mark.parametrize(
    "value",
    [
        float("inf"), float("-inf"), -0.0, 0.0, 5e-324, 1.7976931348623157e308,
        struct.unpack("<d", bytes.fromhex("0100000000000080"))[0],
        struct.unpack("<d", bytes.fromhex("efbeadde0000f87f"))[0],
        struct.unpack("<d", bytes.fromhex("010000000000f0ff"))[0],
        2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**200, True, False, None, "",
        "\0", "\ud800", "a\u202eb", "\U0001f600",
        {"30": 1}, {30: 1}, {True: 1}, {1: "a", "1": "b"}, {None: 1}, {(1, 2): 3}, {"$": "tuple", "v": [1]}, {"": 0},
        {"\ud800": 1}, {"b": 1, "a": 2}, (), (1,), [()], set(), frozenset({frozenset({1})}), deque(maxlen=0),
        deque([1, 2], maxlen=2), Counter("aab"), Counter({"a": -1}), defaultdict(list, {1: [2]}), OrderedDict(b=1, a=2),
        range(0), range(5, -5, -2), slice(None, 3), b"\xff\0", bytearray(b"x"), complex(-0.0, float("nan")),
    ],
    ids=repr,
)  # fmt: skip
def test_values_that_json_alone_would_change(value: Any) -> None:
    assert same(there_and_back(value), value)


def test_what_is_plain_stays_plain() -> None:
    value = {"best": 0.5, "names": ["a", "b"], "n": 3, "none": None}
    assert encode(value, "state", FOREIGN) == value, "another program reads it without us"


def test_encoding_is_a_function_of_the_value() -> None:
    one, other = set("abcdefgh"), set(reversed("abcdefgh"))
    assert json.dumps(encode(one, "s", FOREIGN)) == json.dumps(encode(other, "s", FOREIGN))


def test_encoding_shares_nothing_with_the_value() -> None:
    value: dict[str, Any] = {"list": [1]}
    encoded = encode(value, "state", FOREIGN)
    value["list"].append(2)
    assert encoded == {"list": [1]}


class Mine:
    pass


class MyList(list[int]):
    pass


class MyInt(int):
    pass


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Mine(), "state"),
        ([1, {"a": (2, Mine())}], "state[1].a[1]"),
        ({("k", 1): Mine()}, "state[('k', 1)]"),
        ({Mine(): 1}, "state key"),
        (deque([Mine()]), "state[0]"),
        ({Mine()}, "state{}"),
        (MyList([1]), "state"),
        (MyInt(1), "state"),
        (lambda: 1, "state"),
        (Mine, "state"),
        (defaultdict(lambda: 3, {}), "state"),
        (iter([1]), "state"),
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_named_by_its_path(value: object, path: str) -> None:
    with pytest.raises(StateNotStorable) as raised:
        encode(value, "state", FOREIGN)
    assert raised.value.message.startswith(f"{path} is a ")
    assert raised.value.hint


def test_depth_is_limited_and_the_limit_can_be_read_back() -> None:
    def nested(depth: int) -> object:
        value: object = 1
        for _ in range(depth):
            value = [value]
        return value

    deepest = 1
    while deepest < 100:
        try:
            encode(nested(deepest + 1), "state", FOREIGN)
        except StateNotStorable:
            break
        deepest += 1
    assert MAX_DEPTH - 1 <= deepest <= MAX_DEPTH
    assert there_and_back(nested(deepest)) == nested(deepest)


@pytest.mark.parametrize("wrap", [lambda v: (v,), lambda v: {1: v}, lambda v: deque([v]), lambda v: OrderedDict(a=v)])
def test_whatever_can_be_written_can_be_read(wrap: Any) -> None:
    """Tagged values are deeper in JSON than in Python: the writer must refuse before the reader would."""
    value: object = 1
    for _ in range(60):
        value = wrap(value)
        try:
            encode(value, "state", FOREIGN)
        except StateNotStorable:
            return
        # The deepest place in loop.json: tree, optimizers, name, state, pair, values.
        raw = msgspec.json.encode({"tree": {"optimizers": {"": {"state": [[encode(value, "state", FOREIGN)]]}}}})
        strict_json.loads(raw, max_bytes=1 << 20)
    raise AssertionError("no limit")


@pytest.mark.parametrize(
    "stored",
    [
        {"$": "unknown", "v": 1},
        {"$": "tuple"},
        {"$": "tuple", "v": 3},
        {"$": "int", "v": "zz"},
        {"$": "float", "v": "00"},
        {"$": "bytes", "v": "***"},
        {"$": "dict", "v": [[1]]},
        {"$": "dict", "v": [[[1], 2]]},
        {"$": "deque", "v": [1]},
        {"$": "deque", "v": [1], "maxlen": -1},
        {"$": "defaultdict", "v": [], "factory": "os.system"},
        {"$": "set", "v": [[1]]},
        {"$": ["tuple"], "v": 1},
        {"$": None, "v": 1},
        {"$": "Counter", "v": 1},
        {"$": "range", "v": [1, 2, 0]},
        {"$": "str", "v": "gICA"},
    ],
    ids=str,
)
def test_damaged_values_are_a_named_error(stored: Any) -> None:
    with pytest.raises(Damaged):
        decode(stored, FOREIGN)


def test_nothing_of_json_is_lost_on_nan() -> None:
    assert math.isnan(there_and_back(float("nan")))
