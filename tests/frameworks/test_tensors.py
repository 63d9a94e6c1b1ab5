"""Tensors and arrays in run.state and extra: taken out into leaves, and back with type, shape, strides and bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stepfast
from stepfast.core.errors import StateNotStorable
from stepfast.frameworks.torch.tensors import DTYPES, TorchForeign

pytestmark = pytest.mark.slow


def through_a_checkpoint(tmp_path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """What a new start finds in run.state: over the slot, the agent, the file and the strict reader."""
    model = nn.Linear(1, 1)
    run = stepfast.Run(tmp_path / "run", model=model, steps=1)
    run.state.update(values)
    for _ in run:
        pass
    run = stepfast.Run(tmp_path / "run", model=model, steps=1)
    for _ in run:
        pass
    return run.state


def raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def made(dtype: torch.dtype) -> torch.Tensor:
    size = torch.empty(0, dtype=dtype).element_size()
    if dtype is torch.bool:
        return torch.tensor([True, False, True])
    return torch.arange(1, 3 * size + 1, dtype=torch.uint8).view(dtype)


TENSORS = {f"of {str(dtype).removeprefix('torch.')}": made(dtype) for dtype in DTYPES} | {
    "0-dim": torch.tensor(3.5),
    "empty": torch.empty(0),
    "empty 2-dim": torch.empty(3, 0, 2),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every second": torch.arange(10.0)[::2],
    "expanded": torch.arange(3.0).reshape(3, 1).expand(3, 4),
    "nan bits": torch.tensor([0x7FC00001, 0x7F800001, -0x400000], dtype=torch.int32).view(torch.float32),
    "-0.0": torch.tensor([-0.0]),
    "conj": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "size one": torch.randn(1, 5, 1).transpose(0, 2),
}


def test_tensors(tmp_path: Path) -> None:
    values: dict[str, Any] = dict(TENSORS)
    values["wants gradients"] = torch.ones(2, requires_grad=True)
    values["parameter"] = nn.Parameter(torch.ones(2))
    values["frozen"] = nn.Parameter(torch.ones(2), requires_grad=False)
    back = through_a_checkpoint(tmp_path, values)
    assert back.keys() == values.keys()
    for name, was in values.items():
        now = back[name]
        assert type(now) is type(was), name
        assert (now.dtype, now.shape, now.requires_grad) == (was.dtype, was.shape, was.requires_grad), name
        assert raw(now) == raw(was), name
        if was.numel():
            assert now.stride() == was.stride(), name


ARRAYS = {
    f"of {code}": np.arange(6).reshape(2, 3).astype(code)
    for code in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
} | {
    "0-dim": np.array(2.5),
    "empty": np.empty((0, 3)),
    "backwards": np.arange(5.0)[::-1],
    "transposed": np.arange(6).reshape(2, 3).T,
    "big endian": np.arange(3, dtype=">i4"),
    "dates": np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    "durations": np.array([1, 2], dtype="timedelta64[ms]"),
    "text": np.array(["ab", "c"]),
    "bytes": np.array([b"ab", b"c"]),
    "read only": np.frombuffer(b"abcd", dtype=np.uint8),
}


def test_arrays(tmp_path: Path) -> None:
    back = through_a_checkpoint(tmp_path, dict(ARRAYS))
    for name, was in ARRAYS.items():
        now = back[name]
        assert type(now) is np.ndarray, name
        assert (now.dtype, now.shape) == (was.dtype, was.shape), name
        assert now.tobytes() == was.tobytes(), name
        assert now.flags.writeable, name


SCALARS = [
    np.float64("nan"), np.float32(0.1), np.float16(2), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True),
    np.complex64(1 + 2j), np.datetime64("2020-01-01"), np.str_("ab"), np.bytes_(b"c"),
]  # fmt: skip


def test_scalars_and_small_types(tmp_path: Path) -> None:
    values = {str(number): scalar for number, scalar in enumerate(SCALARS)}
    others = {"size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cpu")}
    nested = {"nested": {3: [(torch.ones(2), {"deep": np.arange(2)})]}}
    back = through_a_checkpoint(tmp_path, values | others | nested)
    for key, was in values.items():
        assert type(back[key]) is type(was)
        assert back[key].tobytes() == was.tobytes()
    assert {key: back[key] for key in others} == others
    tensor, deeper = back["nested"][3][0]
    assert tensor.tolist() == [1.0, 1.0]
    assert deeper["deep"].tolist() == [0, 1]


def test_one_tensor_twice_is_stored_and_comes_back(tmp_path: Path) -> None:
    tensor = torch.ones(3)
    back = through_a_checkpoint(tmp_path, {"a": tensor, "b": tensor, "a.b": tensor, "a b": tensor, "a_b": tensor})
    assert [value.tolist() for value in back.values()] == [[1.0] * 3] * 5


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.array([object()]), "state.value is a numpy.ndarray"),
        (np.ma.masked_array([1]), "state.value is a numpy.ma.MaskedArray"),
        (np.arange(3, dtype=np.longdouble), "state.value is a numpy.ndarray"),
        (np.zeros(2, dtype=[("a", "f4")]), "state.value is a numpy.ndarray"),
        (torch.ones(2).to_sparse(), "state.value is a sparse_coo tensor"),
        (torch.empty(1, device="meta"), "on the meta device"),
        (torch.ones(1, requires_grad=True).exp(), "keep state.value.detach() instead"),
    ],
)
def test_what_cannot_be_stored(value: object, words: str) -> None:
    from stepfast.core import codec

    with pytest.raises(StateNotStorable) as raised:
        codec.encode({"value": value}, "state", TorchForeign("state"))
    assert words in str(raised.value)
