"""The walk that finds generators: where it looks, and that it ends."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch

from stepfast.core.errors import StateMismatch
from stepfast.frameworks.torch.generators import MAX_OBJECTS, FoundGenerators, search

MODULE_GENERATOR = np.random.default_rng(1)


def _uses_the_module() -> float:
    return float(MODULE_GENERATOR.random())


class Data:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getitem__(self, index: int) -> float:
        return _uses_the_module()


class Slotted:
    __slots__ = ("empty", "rng")

    def __init__(self) -> None:
        self.rng = random.Random(1)

    def transform(self) -> float:
        return self.rng.random()


def test_where_it_looks() -> None:
    inside = random.Random(2)
    data = Data(
        direct=torch.Generator(),
        listed=[1, (Slotted(), {"key": np.random.RandomState(1)})],
        closure=lambda: inside.random(),
        partial=functools.partial(print, end=np.random.default_rng(2)),
        method=Slotted().transform,
        module=torch.nn.Sequential(torch.nn.Linear(2, 2)),
    )
    data.myself = data
    found, complete = search({"dataset": data})
    assert complete
    assert sorted(found) == sorted(
        [
            "dataset.direct",
            "dataset.listed[1][0].rng",
            "dataset.listed[1][1]['key']",
            "dataset.closure.inside",
            "dataset.partial.keywords['end']",
            "dataset.method.rng",
            f"{__name__}.MODULE_GENERATOR",
        ]
    )


def test_the_global_generators_are_left_out() -> None:
    data = Data(torch=torch.default_generator, legacy=np.random.mtrand._rand, python=random.random)
    assert list(search({"dataset": data})[0]) == [f"{__name__}.MODULE_GENERATOR"]


def test_one_generator_has_one_name() -> None:
    shared = torch.Generator()
    assert list(search({"a": shared, "b": [shared]})[0]) == ["a"]
    assert list(search({"b": [shared]}, skip=[shared])[0]) == []


def test_the_walk_is_bounded() -> None:
    wide = [[[Slotted() for _ in range(60)] for _ in range(60)] for _ in range(60)]
    found, complete = search({"dataset": wide})
    assert not complete
    assert len(found) <= MAX_OBJECTS
    assert search({"dataset": [list(range(10**6))]})[1]


def test_put_back_by_name() -> None:
    made = FoundGenerators({"a": random.Random(1), "b": [np.random.default_rng(2)]})
    state = made.capture()
    first, second = random.Random(7), np.random.default_rng(8)
    FoundGenerators({"a": first, "b": [second]}).restore(state)
    assert first.random() == random.Random(1).random()
    assert second.random() == np.random.default_rng(2).random()
    with pytest.raises(StateMismatch, match=r"b\[0\]"):
        FoundGenerators({"a": first}).restore(state)
