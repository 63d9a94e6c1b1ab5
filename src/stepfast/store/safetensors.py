"""The header of a safetensors file: writing it, and reading it from anybody. Not here: the data.

The layout is decided here alone: data begins at a multiple of 4 KiB, leaves follow without gaps, the largest
elements first, so that each leaf is aligned to its element.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from stepfast.core.errors import Damaged, StateNotStorable
from stepfast.core.words import BLOCK_BYTES, DTYPE_BYTES, round_up
from stepfast.files import strict_json
from stepfast.store.names import is_leaf_name

MAX_HEADER_BYTES = 8 << 20
MAX_DIMENSIONS = 64
MAX_COUNT = 2**63 - 1
_MAX_DEPTH = 8
_METADATA = "__metadata__"

Tensor: TypeAlias = tuple[str, tuple[int, ...], int, int]
"""dtype, shape, offset from the beginning of the file, size in bytes."""


def stored_form(dtype: str, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """How a leaf stands in the file: complex128 as pairs of reals."""
    return ("F64", (*shape, 2)) if dtype == "C128" else (dtype, tuple(shape))


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a leaf."""
    return math.prod(shape) * DTYPE_BYTES[dtype]


def build_header(
    leaves: Sequence[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str]
) -> tuple[bytes, list[int], int]:
    """The header's bytes, the offset of each leaf from the beginning of the file, the size of the file.

    `leaves` are (key, dtype, shape); the offsets are in the same order.

    Raises:
        StateNotStorable: a key, dtype or shape is none, or there is too much of it.
    """
    header: dict[str, Any] = {_METADATA: metadata} if metadata else {}
    relative = [0] * len(leaves)
    end = 0
    for number in sorted(range(len(leaves)), key=lambda n: -DTYPE_BYTES.get(leaves[n][1], 0)):
        key, dtype, shape = leaves[number]
        if not is_leaf_name(key) or key == _METADATA or key in header:
            raise StateNotStorable(f"{ascii(key)[:200]} cannot be the key of a leaf in a file, or stands there twice")
        if dtype not in DTYPE_BYTES:
            raise StateNotStorable(f"leaf {key} has the dtype {dtype}, which no file can hold")
        size = size_of(dtype, shape)
        if len(shape) >= MAX_DIMENSIONS or size > MAX_COUNT:
            raise StateNotStorable(f"leaf {key} has too many dimensions or elements")
        stored_dtype, stored_shape = stored_form(dtype, shape)
        header[key] = {"dtype": stored_dtype, "shape": stored_shape, "data_offsets": (end, end + size)}
        relative[number] = end
        end += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    start = round_up(8 + len(text), BLOCK_BYTES)
    if start - 8 > MAX_HEADER_BYTES:
        raise StateNotStorable(f"{len(leaves)} leaves need a header of {start - 8} bytes, more than one file may have")
    raw = (start - 8).to_bytes(8, "little") + text.ljust(start - 8)
    return raw, [start + offset for offset in relative], start + end


def header_size(first_bytes: bytes, file_size: int) -> int:
    """Where the data begins: 8 and the length that the first 8 bytes announce."""
    if len(first_bytes) < 8:
        raise Damaged("the file is too short for a header")
    length = int.from_bytes(first_bytes[:8], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise Damaged(f"the header claims {length} bytes; 2 to {MAX_HEADER_BYTES} are allowed")
    if 8 + length > file_size:
        raise Damaged(f"the header claims {length} bytes, the file has {file_size}")
    return 8 + length


def parse_header(raw: bytes, file_size: int) -> dict[str, Tensor]:
    """What a file holds. `raw` is its beginning, at least the whole header.

    Raises:
        Damaged: the header is not exactly what the format says (the file is not named; the caller knows it).
    """
    start = header_size(raw, file_size)
    if len(raw) < start:
        raise Damaged(f"the header claims {start - 8} bytes, {len(raw) - 8} are there")
    text = raw[8:start]
    if not text.startswith(b"{"):
        raise Damaged("the header does not begin with {")
    try:
        header = strict_json.loads(text.rstrip(b" "), max_bytes=MAX_HEADER_BYTES, max_depth=_MAX_DEPTH)
    except ValueError as error:
        raise Damaged(f"the header is not strict JSON: {error}") from error
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Damaged(f"{_METADATA} in the header holds something else than texts")
    tensors = {key: _tensor(key, entry, start) for key, entry in header.items()}
    end = start
    for key, (_, _, offset, size) in sorted(tensors.items(), key=lambda item: (item[1][2], item[1][3])):
        if offset != end:
            raise Damaged(f"leaf {key} begins at byte {offset}, the one before ends at {end}: a gap or an overlap")
        end += size
    if end != file_size:
        raise Damaged(f"the leaves end at byte {end}, the file has {file_size}")
    return tensors


def _tensor(key: str, entry: Any, start: int) -> Tensor:
    if not is_leaf_name(key):
        raise Damaged(f"{ascii(key)[:200]} cannot be the key of a leaf")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Damaged(f"leaf {key}: the header's entry has other fields than dtype, shape, data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES or dtype == "C128":
        raise Damaged(f"leaf {key}: unknown dtype {ascii(dtype)[:40]}")
    if not is_shape(shape):
        raise Damaged(f"leaf {key}: the shape is none")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(is_count(offset) for offset in offsets):
        raise Damaged(f"leaf {key}: data_offsets are not two whole numbers")
    begin, end = offsets
    if end - begin != size_of(dtype, shape):
        raise Damaged(f"leaf {key}: {dtype} of shape {shape} does not fill bytes {begin} to {end}")
    return dtype, tuple(shape), start + begin, end - begin


def is_count(value: object) -> bool:
    """An int (True is none) from 0 to 2^63 - 1."""
    return type(value) is int and 0 <= value <= MAX_COUNT


def is_shape(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) <= MAX_DIMENSIONS
        and all(is_count(size) for size in value)
        and math.prod(value) <= MAX_COUNT
    )
