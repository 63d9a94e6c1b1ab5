"""The digest of a batch: equal content gives equal digests, any difference another one."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from stepfast.frameworks.torch.batch_digest import batch_digest

Pair = namedtuple("Pair", ["x", "y"])
Other = namedtuple("Other", ["x", "z"])


@dataclasses.dataclass
class Example:
    x: Any
    y: Any = 0


def test_sixteen_bytes_that_stay() -> None:
    """Stored in progress.bin and compared by later versions."""
    batch = {"x": torch.arange(6, dtype=torch.float32).reshape(2, 3), "y": [1, "a", None, 2.5]}
    assert batch_digest(batch).hex() == "ad6afd25d648e4e3c65cd22f590c0cac"


DIFFERENT: list[Any] = [
    torch.zeros(2, 3),
    torch.zeros(3, 2),
    torch.zeros(6),
    torch.zeros(2, 3, dtype=torch.int32),
    -torch.zeros(2, 3),
    torch.zeros(2, 3, dtype=torch.bfloat16),
    torch.zeros(2, 3, dtype=torch.float16),
    torch.zeros(()),
    torch.zeros(0),
    torch.zeros(0, 2),
    torch.zeros(2, 3, dtype=torch.complex64),
    torch.tensor([float("nan")]),
    np.zeros((2, 3)),
    np.zeros((2, 3), dtype=">f8"),
    np.zeros((3, 2)),
    np.array([1, "a"], dtype=object),
    np.array([1, "b"], dtype=object),
    np.array(["2020-01-01"], dtype="M8[D]"),
    np.array(["2020-01-02"], dtype="M8[D]"),
    [1, 2],
    (1, [2]),
    [[1], 2],
    [1, 2, []],
    {"a": 1},
    {"a": 2},
    {"b": 1},
    {1: "a"},
    "ab",
    b"ab",
    ["a", "b"],
    1,
    1.0,
    True,
    None,
    "1",
    0.0,
    -0.0,
    1j,
    Pair(1, 2),
    Other(1, 2),
    Example(1),
    Example(2),
    object(),
    2**70,
]


def test_differences_are_seen() -> None:
    digests = [batch_digest(value) for value in DIFFERENT]
    assert len(set(digests)) == len(digests)
    assert {len(digest) for digest in digests} == {16}


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (torch.arange(6).reshape(2, 3).t(), torch.arange(6).reshape(2, 3).t().contiguous()),
        (
            torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last),
            torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)),
        ),
        (torch.ones(4, dtype=torch.bfloat16)[::2], torch.ones(2, dtype=torch.bfloat16)),
        (torch.ones(3, requires_grad=True), torch.ones(3)),
        (torch.tensor([1j, 2j]).conj(), torch.tensor([1j, 2j]).conj().resolve_conj()),
        (np.arange(12).reshape(3, 4)[:, ::2], np.arange(12).reshape(3, 4)[:, ::2].copy()),
        ([1, 2], (1, 2)),
        (OrderedDict(a=1), {"a": 1}),
        (object(), object()),
        (np.float32(3), np.asarray(3, dtype=np.float32)),
        (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
    ],
)
def test_equal_content_is_equal(value: Any, same: Any) -> None:
    assert batch_digest(value) == batch_digest(same)


def test_a_batch_that_holds_itself_ends() -> None:
    batch: list[Any] = [torch.ones(2)]
    batch.append(batch)
    assert batch_digest(batch) == batch_digest(batch)


def test_sparse_tensors_count_by_their_type() -> None:
    assert batch_digest(torch.eye(3).to_sparse()) == batch_digest(torch.zeros(3, 3).to_sparse())
