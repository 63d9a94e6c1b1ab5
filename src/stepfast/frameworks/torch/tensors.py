"""Tensors as leaves: dtypes, strides, memory; and the codec's way to tensors, arrays and torch's small types."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash

from stepfast.core.errors import Damaged, StateNotStorable
from stepfast.core.protocols import LiveLeaf
from stepfast.core.words import DTYPE_BYTES

DTYPES: dict[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64", torch.complex128: "C128",
}  # fmt: skip
BY_CODE = {code: dtype for dtype, code in DTYPES.items()}
MAX_SPREAD = 64
"""A strided leaf spans at most this many times its own elements."""
COPIED_ARRAYS_BYTES = 4 << 20
"""So much of NumPy arrays is copied at every boundary."""
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_MARK_BYTES = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]-]|(?<=\.)\.|^[.-]")


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def live_leaf(tensor: torch.Tensor, *, name: str, key: str, group: str) -> LiveLeaf:
    """Describe `tensor`; raises StateNotStorable for what a checkpoint cannot hold."""
    if type(tensor) not in _PLAIN_TYPES and not isinstance(tensor, torch.nn.Parameter):
        what = f"a {type(tensor).__name__}"
    elif tensor.layout is not torch.strided:
        what = f"a {str(tensor.layout).removeprefix('torch.')} tensor"
    elif tensor.is_meta or tensor.dtype not in DTYPES:
        what = "on the meta device" if tensor.is_meta else f"of {tensor.dtype}"
    else:
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return LiveLeaf(
            name=name,
            key=key,
            group=group,
            dtype=DTYPES[tensor.dtype],
            shape=shape,
            strides=None if strides == row_major(shape) or _is_spread(shape, strides) else strides,
            tensor=tensor,
        )
    raise StateNotStorable(f"{name} is {what}, which cannot be stored", hint="keep a dense tensor there")


def stored_bytes(leaf: LiveLeaf) -> int:
    return math.prod(leaf.shape) * DTYPE_BYTES[leaf.dtype]


def _is_spread(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """A thin slice of something big: stored and restored in contiguous order."""
    return extent(shape, strides) > MAX_SPREAD * math.prod(shape)


@dataclass(frozen=True, slots=True)
class Marked:
    """Tensors whose marks are taken at every boundary; what does not change between two is looked up once."""

    tensors: tuple[torch.Tensor, ...]
    places: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> Marked:
        return cls(tuple(tensors), tuple(t.data_ptr() for t in tensors), tuple(map(_readable_bytes, tensors)))


def marks(marked: Marked) -> list[object]:
    """One for each tensor, another one after most writes to it: version counter, place, first bytes."""
    versions = [tensor._version for tensor in marked.tensors]
    places = [tensor.data_ptr() for tensor in marked.tensors]
    heads = [
        ctypes.string_at(place, size) if place == was else b""
        for place, was, size in zip(places, marked.places, marked.sizes, strict=True)
    ]
    return list(zip(versions, places, heads, strict=True))


def mark(tensor: torch.Tensor) -> object:
    return marks(Marked.of([tensor]))[0]


def _readable_bytes(tensor: torch.Tensor) -> int:
    if tensor.device.type != "cpu" or not tensor.data_ptr():
        return 0
    return min(_MARK_BYTES, tensor.nbytes) if tensor.is_contiguous() else tensor.element_size()


def digest(tensor: torch.Tensor) -> str:
    """As in a manifest: of the elements in contiguous order."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return xxhash.xxh3_128_hexdigest(byte_view(plain) if plain.numel() else b"")


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable."""
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(torch.uint8).numpy().data


def over_memory(base: torch.Tensor, dtype: str, shape: Sequence[int], offset: int, size: int) -> torch.Tensor:
    """A tensor over a part of `base` (the bytes of a slot), in contiguous order."""
    return base[offset : offset + size].view(BY_CODE[dtype]).view(tuple(shape))


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of memory that a tensor spans."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if all(shape) else 0


def empty_like_stored(dtype: str, shape: Sequence[int], strides: Sequence[int] | None) -> torch.Tensor:
    if strides is None:
        return torch.empty(tuple(shape), dtype=BY_CODE[dtype])
    if extent(shape, strides) > MAX_SPREAD * math.prod(shape):
        raise Damaged(f"strides {list(strides)} for shape {list(shape)} would take far more memory than the leaf has")
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=BY_CODE[dtype])


def copy_elements(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy element by element, also into a target whose expanded dimensions share their memory."""
    for dim, stride in enumerate(target.stride()):
        if stride == 0 and target.shape[dim] > 1:
            target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    target.copy_(source)


def clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies in memory as `tensor` does; `Tensor.clone` makes a part of a larger tensor dense."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    copy_elements(copy, tensor)
    return copy


class TorchForeign:
    """The codec's hook. Encoding collects leaves; decoding takes tensors from `tensors`, by leaf name."""

    def __init__(self, group: str, tensors: dict[str, torch.Tensor] | None = None) -> None:
        self.group = group
        self.leaves: list[LiveLeaf] = []
        self.is_watched = True
        """False once an array was too large to be copied: nothing tells when somebody writes it."""
        self._copied_bytes = 0
        self._names: set[str] = set()
        self._tensors = tensors or {}

    def encode(self, value: object, path: str) -> dict[str, Any] | None:
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(value, path)
        if isinstance(value, np.ndarray):
            return self._encode_array(value, path)
        if isinstance(value, np.generic):
            if value.dtype.hasobject:
                return None
            return {"$": "numpy", "v": value.tobytes().hex(), "dtype": value.dtype.str}
        if type(value) is torch.Size:
            return {"$": "torch.Size", "v": list(value)}
        if type(value) is torch.dtype:
            return {"$": "torch.dtype", "v": str(value).removeprefix("torch.")}
        if type(value) is torch.device:
            return {"$": "torch.device", "v": str(value)}
        return None

    def decode(self, kind: str, tagged: dict[str, Any]) -> object:
        payload = tagged["v"]
        if kind == "tensor":
            tensor = self._tensors[payload]
            if (device := tagged.get("device")) is not None:
                tensor = tensor.to(device)
            if tagged.get("parameter"):
                return torch.nn.Parameter(tensor, requires_grad=tagged.get("requires_grad", False))
            return tensor.requires_grad_() if tagged.get("requires_grad") else tensor
        if kind == "array":
            array = self._tensors[payload].numpy()
            return array.view(np.dtype(tagged["dtype"])) if "dtype" in tagged else array
        if kind == "numpy":
            return np.frombuffer(bytes.fromhex(payload), dtype=np.dtype(tagged["dtype"]))[0]
        return _SMALL[kind](payload)

    def _encode_tensor(self, value: torch.Tensor, path: str) -> dict[str, Any]:
        if value.grad_fn is not None:
            raise StateNotStorable(
                f"{path} is a tensor that still belongs to a graph of gradients",
                hint=f"keep {path}.detach() instead",
            )
        tagged: dict[str, Any] = {"$": "tensor", "v": self.take(value, path)}
        if value.device.type != "cpu":
            tagged["device"] = str(value.device)
        if value.requires_grad:
            tagged["requires_grad"] = True
        if isinstance(value, torch.nn.Parameter):
            tagged["parameter"] = True
        return tagged

    def _encode_array(self, value: np.ndarray[Any, Any], path: str) -> dict[str, Any] | None:
        if value.dtype.hasobject or type(value) is not np.ndarray or value.dtype.kind not in "biufcmMUS":
            return None
        extra: dict[str, Any] = {}
        if value.dtype.kind in "mMUS" or not value.dtype.isnative or value.dtype.itemsize > 16 or value.itemsize == 0:
            extra = {"dtype": value.dtype.str}
            if value.itemsize == 0 or value.ndim == 0:
                return None
            value = np.ascontiguousarray(value).view(np.uint8)
        if value.ndim and any(step < 0 for step in value.strides):
            value = np.ascontiguousarray(value)
        # An array has no version counter, so it is copied where it is met, as numbers and strings are.
        self._copied_bytes += value.nbytes
        small = self._copied_bytes <= COPIED_ARRAYS_BYTES
        self.is_watched = self.is_watched and small
        try:
            tensor = torch.from_numpy(value.copy(order="K") if small or not value.flags.writeable else value)
        except TypeError:
            return None
        return {"$": "array", "v": self.take(tensor, path), **extra}

    def take(self, tensor: torch.Tensor, path: str) -> str:
        """Make `tensor` a leaf; the name it got."""
        base = name = _UNSAFE.sub("_", path)[-180:]
        while name in self._names:
            name = f"{base}_{len(self._names)}"
        self._names.add(name)
        self.leaves.append(live_leaf(tensor, name=name, key=name, group=self.group))
        return name


_SMALL: dict[str, Callable[[Any], object]] = {
    "torch.Size": torch.Size,
    "torch.dtype": lambda v: _named_dtype(v),
    "torch.device": torch.device,
}


def _named_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise KeyError(name)
    return found
