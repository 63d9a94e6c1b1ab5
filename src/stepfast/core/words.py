"""The words of the product as types: where a run stands, and what a leaf and a file are. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_BYTES = 4096
"""Files in a slot, and the data of a tensor file, begin at a multiple of this."""

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
    "C128": 16,
}  # fmt: skip
"""Leaf dtypes. C128 is ours: a tensor file holds it as F64 with one more dimension of 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The next batch not yet in the weights.

    `step` steps are in the weights; the next batch is number `batch` of epoch number `epoch` (all from 0).
    """

    step: int
    epoch: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A named tensor inside a file. `strides` is None for the contiguous order; the file always holds the
    elements in contiguous order, strides (in elements) say how the live tensor lay in memory."""

    name: str
    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    strides: tuple[int, ...] | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One file of a checkpoint. `digest` is empty until the file was written."""

    name: str
    size: int
    leaves: tuple[Leaf, ...] = ()
    digest: str = ""


def round_up(size: int, unit: int = BLOCK_BYTES) -> int:
    return -(-size // unit) * unit
