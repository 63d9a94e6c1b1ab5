"""Generators as plain values: what comes back draws what would have been drawn."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from stepfast.core import codec
from stepfast.core.errors import StateMismatch
from stepfast.frameworks.torch import rng


def through_the_codec(state: object) -> Any:
    return codec.decode(json.loads(json.dumps(codec.encode(state, "", codec.NoForeign()))), codec.NoForeign())


def draws() -> list[float]:
    """Odd counts, so that halves of pairs of normal draws are left waiting."""
    return [
        random.random(), random.gauss(0, 1), *torch.randn(3).tolist(), *torch.rand(40).tolist(),
        np.random.random(), np.random.standard_normal(),
    ]  # fmt: skip


def scramble() -> None:
    random.seed(99)
    torch.manual_seed(99)
    np.random.seed(99)
    np.random.standard_normal()


@pytest.mark.parametrize("rounds", range(4))
def test_global_generators_come_back(rounds: int) -> None:
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    for _ in range(rounds):
        draws()
    state = through_the_codec(rng.capture())
    text = rng.digest(state)
    expected = draws() + draws()
    assert rng.digest(rng.capture()) != text
    scramble()
    rng.restore(state)
    assert rng.digest(rng.capture()) == text
    assert draws() + draws() == expected


def test_a_waiting_numpy_draw_is_seen_though_the_memory_stays() -> None:
    """The second normal draw of a pair moves no word of the generator."""
    np.random.seed(1)
    before = rng.digest(rng.capture())
    np.random.standard_normal()
    waiting = rng.capture()
    np.random.standard_normal()
    used = rng.capture()
    assert len({before, rng.digest(waiting), rng.digest(used)}) == 3
    rng.restore(waiting)
    assert rng.digest(rng.capture()) == rng.digest(waiting)
    rng.restore(used)
    assert rng.digest(rng.capture()) == rng.digest(used)


def test_capture_holds_plain_values_only() -> None:
    def check(value: object) -> None:
        assert type(value) in (dict, str, int, float, bytes, tuple, list, type(None))
        if isinstance(value, dict):
            for item in value.values():
                check(item)
        if isinstance(value, (tuple, list)):
            for item in value:
                check(item)

    check(rng.capture())
    for generator in generators().values():
        check(rng.capture_generator(generator))


def generators() -> dict[str, Any]:
    return {
        "torch": torch.Generator().manual_seed(1),
        "python": random.Random(2),
        "legacy": np.random.RandomState(3),
        "pcg64": np.random.default_rng(4),
        "mt19937": np.random.Generator(np.random.MT19937(5)),
        "philox": np.random.Generator(np.random.Philox(6)),
        "sfc64": np.random.Generator(np.random.SFC64(7)),
    }


def draw_from(generator: Any) -> list[float]:
    if isinstance(generator, torch.Generator):
        return torch.randn(5, generator=generator).tolist()
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1), generator.random()]
    if isinstance(generator, np.random.RandomState):
        return [float(generator.standard_normal()), float(generator.random_sample())]
    return [float(generator.integers(0, 9, dtype=np.int32)), float(generator.standard_normal())]


@pytest.mark.parametrize("name", generators())
@pytest.mark.parametrize("rounds", range(3))
def test_a_generator_comes_back(name: str, rounds: int) -> None:
    generator = generators()[name]
    for _ in range(rounds):
        draw_from(generator)
    state = through_the_codec(rng.capture_generator(generator))
    expected = [draw_from(generator) for _ in range(4)]
    fresh = generators()[name]
    for _ in range(7):
        draw_from(fresh)
    rng.restore_generator(fresh, state)
    assert [draw_from(fresh) for _ in range(4)] == expected


def test_another_kind_of_generator_is_an_error() -> None:
    made = generators()
    states = {name: rng.capture_generator(generator) for name, generator in made.items()}
    for name, generator in made.items():
        for other, state in states.items():
            if other != name:
                with pytest.raises(StateMismatch):
                    rng.restore_generator(generator, state)


def test_what_is_a_generator() -> None:
    assert all(rng.is_generator(generator) for generator in generators().values())
    assert not any(rng.is_generator(value) for value in (random.SystemRandom(), random, np.random, 3, None))
    with pytest.raises(TypeError):
        rng.capture_generator(random.SystemRandom())


def test_digest_tells_nestings_apart() -> None:
    values: list[object] = [
        (b"ab", b"c"),
        (b"a", b"bc"),
        ((b"ab",), b"c"),
        {"a": b"b"},
        {"a": "b"},
        1,
        1.0,
        "1",
        True,
        None,
        0.0,
        -0.0,
    ]
    assert len({rng.digest(value) for value in values}) == len(values)
    assert rng.digest({"a": 1, "b": 2}) == rng.digest({"b": 2, "a": 1})
