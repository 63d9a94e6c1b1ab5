"""A digest of what is in a batch: equal batches give equal digests, in this process and in any other.

Dictionaries, sequences, dataclasses, text, numbers, tensors and arrays are read; of any other object only the
name of its type counts.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash

MAX_DEPTH = 32


def batch_digest(batch: object) -> bytes:
    """16 bytes, xxh3_128."""
    hasher = xxhash.xxh3_128()
    _feed(hasher, batch, 0)
    return hasher.digest()


def _feed(hasher: xxhash.xxh3_128, value: Any, depth: int) -> None:
    if isinstance(value, torch.Tensor):
        _feed_tensor(hasher, value)
    elif depth == MAX_DEPTH:
        hasher.update(b"...")
    elif isinstance(value, np.ndarray):
        _feed_array(hasher, value, depth)
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        hasher.update(b"[%d]" % len(value) if names is None else f"n{names!r}".encode())
        for item in value:
            _feed(hasher, item, depth + 1)
    elif isinstance(value, Mapping):
        hasher.update(b"{%d}" % len(value))
        for key in value:
            _feed(hasher, key, depth + 1)
            _feed(hasher, value[key], depth + 1)
    elif isinstance(value, (str, bytes, bytearray)):
        raw = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        hasher.update(b"%c%d:" % (b"s" if isinstance(value, str) else b"b", len(raw)))
        hasher.update(raw)
    elif isinstance(value, float):
        hasher.update(b"f" + struct.pack("<d", value))
    elif value is None or isinstance(value, (bool, int, complex)):
        hasher.update(f"{type(value).__name__} {value!r};".encode())
    elif isinstance(value, np.generic):
        _feed_array(hasher, np.asarray(value), depth)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        hasher.update(f"c{type(value).__qualname__};".encode())
        for field in dataclasses.fields(value):
            _feed(hasher, field.name, depth + 1)
            _feed(hasher, getattr(value, field.name, None), depth + 1)
    else:
        hasher.update(f"?{type(value).__module__}.{type(value).__qualname__};".encode())


def _feed_tensor(hasher: xxhash.xxh3_128, value: torch.Tensor) -> None:
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        hasher.update(f"?{value.layout} {value.dtype};".encode())
        return
    hasher.update(_header(value.dtype, tuple(value.shape)))
    tensor = value.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.dtype not in _NUMPY_READS:
        tensor = tensor.reshape(-1).view(torch.uint8)
    hasher.update(tensor.numpy().data)


def _feed_array(hasher: xxhash.xxh3_128, value: np.ndarray[Any, Any], depth: int) -> None:
    hasher.update(_header(value.dtype, value.shape))
    if value.dtype.hasobject:
        _feed(hasher, value.tolist(), depth + 1)
    elif value.size and value.dtype.itemsize:
        hasher.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)


@functools.lru_cache(maxsize=256)
def _header(dtype: object, shape: tuple[int, ...]) -> bytes:
    kind = dtype.descr if isinstance(dtype, np.dtype) and dtype.names else dtype
    return f"t{kind} {shape};".encode()


_NUMPY_READS = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)
