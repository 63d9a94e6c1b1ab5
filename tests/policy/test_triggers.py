"""When to save: pure, time is a parameter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.policy.triggers import DEFAULT, AnyOf, Clocks, EpochEnd, Every, On, Trigger, with_save_steps


def clocks(trigger: Trigger, started: float = 100.0) -> Clocks:
    return Clocks(trigger=trigger, started=started)


def due(clock: Clocks, step: int, *, now: float = 100.0, epoch_ended: bool = False) -> list[str]:
    return clock.due(step=step, epoch_ended=epoch_ended, now=now)


@given(st.integers(1, 50), st.integers(1, 200))
def test_every_so_many_steps(steps: int, last: int) -> None:
    clock = clocks(Every(steps=steps))
    saved = [step for step in range(last) if due(clock, step)]
    assert saved == list(range(steps, last, steps)), "never at step 0"


def test_every_so_many_seconds_counts_from_its_own_last_save() -> None:
    clock = clocks(Every(seconds=10))
    assert due(clock, 1, now=109.9) == []
    assert due(clock, 2, now=113) == ["every 10 s"]
    assert due(clock, 3, now=120) == [], "ten seconds after 113, not after 110"
    assert due(clock, 4, now=123) == ["every 10 s"]
    assert due(clock, 5, now=500) == ["every 10 s"]
    assert due(clock, 6, now=501) == [], "a long pause is one save, not forty"


def test_each_part_has_its_own_clock() -> None:
    clock = clocks(Every(seconds=10) | Every(steps=4) | Every(seconds=25))
    assert due(clock, 4, now=112) == ["every 10 s", "every 4 steps"]
    assert due(clock, 5, now=126) == ["every 10 s", "every 25 s"]
    assert due(clock, 6, now=135.5) == []
    assert due(clock, 8, now=136) == ["every 10 s", "every 4 steps"]


def test_epoch_end_only_where_an_epoch_ended() -> None:
    clock = clocks(EpochEnd())
    assert due(clock, 5) == []
    assert due(clock, 5, epoch_ended=True) == ["epoch end"]


def test_the_default_saves_by_time_at_epoch_ends_and_on_events() -> None:
    clock = clocks(DEFAULT)
    assert due(clock, 500) == []
    assert due(clock, 501, now=701, epoch_ended=True) == ["every 600 s", "epoch end"]
    assert all(clock.listens_to(event) for event in ("signal", "exception", "request"))


def test_save_steps_replaces_the_first_term_or_drops_it() -> None:
    assert with_save_steps(None) is DEFAULT
    every = clocks(with_save_steps(500))
    assert due(every, 500, now=10_000) == ["every 500 steps"], "the clock by time is gone"
    none = clocks(with_save_steps(0))
    assert due(none, 500, now=10_000) == []
    assert due(none, 500, epoch_ended=True) == ["epoch end"]
    assert none.listens_to("signal")


def test_composing_is_flat_and_keeps_the_order() -> None:
    one, two, three = Every(steps=1), EpochEnd(), On("signal")
    assert (one | two) | three == one | (two | three) == AnyOf(parts=(one, two, three))
    assert not clocks(one | two).listens_to("signal")
    assert clocks(one | three).listens_to("signal")
    assert not clocks(three).listens_to("request")


@pytest.mark.parametrize("other", [None, 5, "signal"])
def test_composing_with_something_else(other: object) -> None:
    with pytest.raises(TypeError):
        EpochEnd() | other  # type: ignore[operator]
