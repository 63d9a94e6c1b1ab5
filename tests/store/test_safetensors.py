"""The header: written for everybody, read from anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from stepfast.core.errors import Damaged, StateNotStorable
from stepfast.core.words import BLOCK_BYTES, DTYPE_BYTES
from stepfast.store import safetensors as ours
from tests.store import build

LEAVES = st.lists(
    st.tuples(
        st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20),
        st.sampled_from(sorted(DTYPE_BYTES)),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    max_size=12,
    unique_by=lambda leaf: leaf[0],
)


@given(LEAVES)
@settings(deadline=None)
def test_what_is_written_is_read(leaves: list[tuple[str, str, tuple[int, ...]]]) -> None:
    header, offsets, size = ours.build_header(leaves, {"format": "pt"})
    assert len(header) % BLOCK_BYTES == 0
    assert ours.parse_header(header, size) == {
        key: (*ours.stored_form(dtype, shape), offset, ours.size_of(dtype, shape))
        for (key, dtype, shape), offset in zip(leaves, offsets, strict=True)
    }
    for (_, dtype, _), offset in zip(leaves, offsets, strict=True):
        assert offset % DTYPE_BYTES[dtype] == 0


@given(LEAVES)
@settings(deadline=None, max_examples=50)
def test_the_library_reads_what_is_written(leaves: list[tuple[str, str, tuple[int, ...]]]) -> None:
    header, _, size = ours.build_header(leaves, {"format": "pt"})
    data = header + bytes(size - len(header))
    found = dict(safetensors.deserialize(data))
    assert found.keys() == {key for key, _, _ in leaves}
    for key, dtype, shape in leaves:
        expected = ours.stored_form(dtype, shape)
        assert (found[key]["dtype"], tuple(found[key]["shape"])) == expected


def test_the_library_opens_a_file_with_values(tmp_path: Path) -> None:
    arrays = {"b": np.arange(3, dtype=np.uint8), "a": np.array(7.5), "empty": np.zeros((2, 0), np.float32)}
    _, data = build.tensor_file("model.safetensors", arrays)
    (tmp_path / "model.safetensors").write_bytes(data)
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        for key, array in arrays.items():
            np.testing.assert_array_equal(file.get_tensor(key), array)


def test_refuses_to_write_what_nobody_reads() -> None:
    for leaves in (
        [("", "F32", ())],
        [("a\0", "F32", ())],
        [("__metadata__", "F32", ())],
        [("a", "F32", ()), ("a", "F32", ())],
        [("a", "F4", ())],
        [("a", "F32", (2**40, 2**40))],
        [(f"{number:0400}", "F32", ()) for number in range(20_000)],
    ):
        with pytest.raises(StateNotStorable):
            ours.build_header(leaves, {})


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def raw(value: Any, data_bytes: int = 4) -> tuple[bytes, int]:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + data_bytes


HEADERS: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 0),
    "7 bytes": (bytes(7), 7),
    "length 0": (bytes(8), 8),
    "length 1": ((1).to_bytes(8, "little") + b"{", 9),
    "length 2^40": ((2**40).to_bytes(8, "little") + b"{}", 2**41),
    "length 2^63": ((2**63).to_bytes(8, "little") + b"{}", 2**63 - 1),
    "longer than the limit": ((ours.MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", 2**40),
    "longer than the file": ((100).to_bytes(8, "little") + b"{}", 10),
    "not an object": raw([]),
    "no JSON": raw(b"{]"),
    "a name twice": raw(b'{"a":1,"a":1}'),
    "a leaf twice": raw(b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2)),
    "deep": raw(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "leading space": raw(b" {}", 0),
    "zero padding": raw(b"{}\0\0", 0),
    "overlap": raw({"a": entry(), "b": entry()}),
    "partial overlap": raw({"a": entry(shape=[2], offsets=(0, 8)), "b": entry(offsets=(4, 8))}, 8),
    "hole": raw({"a": entry(), "b": entry(offsets=(8, 12))}, 12),
    "hole in front": raw({"a": entry(offsets=(4, 8))}, 8),
    "trailing bytes": raw({"a": entry()}, 5),
    "trailing bytes without a leaf": raw({}, 1),
    "beyond the file": raw({"a": entry()}, 3),
    "negative": raw({"a": entry(offsets=(-4, 0))}, 0),
    "backwards": raw({"a": entry(offsets=(4, 0))}),
    "float offset": raw({"a": entry(offsets=(0, 4.0))}),
    "1e1": raw(b'{"a":{"dtype":"U8","shape":[10],"data_offsets":[0,1e1]}}', 10),
    "true": raw({"a": entry(shape=[True])}),
    "three offsets": raw({"a": entry(offsets=(0, 4, 4))}),
    "no offsets": raw({"a": {"dtype": "F32", "shape": [1]}}),
    "another field": raw({"a": entry(more=1)}),
    "unknown dtype": raw({"a": entry(dtype="F33")}),
    "C128 in a file": raw({"a": entry(dtype="C128", offsets=(0, 16))}, 16),
    "dtype is a list": raw({"a": entry(dtype=["F32"])}),
    "shape is none": raw({"a": entry(shape=None)}),
    "negative shape": raw({"a": entry(shape=[-1, -1])}),
    "shape and size": raw({"a": entry(shape=[2])}),
    "product wraps to 1": raw({"a": entry(dtype="U8", shape=[2**62, 4], offsets=(0, 0))}, 0),
    "65 dimensions": raw({"a": entry(shape=[1] * 65)}),
    "metadata number": raw({"__metadata__": {"a": 1}, "a": entry()}),
    "metadata text": raw({"__metadata__": "x", "a": entry()}),
    "NUL in a name": raw({"a\0": entry()}),
    "climbing name": raw({"../../x": entry()}),
    "absolute name": raw({"/etc/passwd": entry()}),
    "empty name": raw({"": entry()}),
    "1 MB name": raw({"a" * 1_000_000: entry()}),
    "escape in a name": raw({"\x1b]0;owned\x07": entry()}),
    "name that turns direction": raw({"a\u202eb": entry()}),
}


@pytest.mark.parametrize(("header", "size"), HEADERS.values(), ids=HEADERS.keys())
def test_refuses(header: bytes, size: int) -> None:
    with pytest.raises(Damaged):
        ours.parse_header(header, size)


@given(st.binary(max_size=64), st.integers(0, 100))
def test_any_bytes_are_taken_or_damaged(data: bytes, size: int) -> None:
    framed = len(data).to_bytes(8, "little") + data
    for attempt in (data, framed):
        try:
            ours.parse_header(attempt, size)
        except Damaged:
            continue


def test_a_plain_file_of_the_library_is_read() -> None:
    data = safetensors.numpy.save({"w": np.ones((2, 3), np.float32)}, metadata={"a": "b"})
    assert ours.parse_header(data, len(data)) == {"w": ("F32", (2, 3), len(data) - 24, 24)}
