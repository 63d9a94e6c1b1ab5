"""Cursor arithmetic: every walk over epochs, windows and limits visits each batch once and ends where it must."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepfast.data.position import Position

lengths = st.integers(1, 12)
limits = st.none() | st.integers(0, 30)


def walk(position: Position) -> list[tuple[int, int, int, int, bool]]:
    """(step, epoch, batch, window size, window end) of every batch, as the loop walks."""
    seen = []
    while not position.is_complete:
        while not position.epoch_exhausted:
            if position.in_step and position.at_window_start:
                if position.is_last_step:
                    break
                position.finish_step()
            position.hand()
            seen.append((position.step, position.epoch, position.handed - 1, position.window_size, position.window_end))
        position.finish_step()
        if position.is_complete and not position.epoch_exhausted:
            break
        position.next_epoch()
    return seen


def position(length: int, epochs: int | None, steps: int | None, accumulate: int) -> Position:
    return Position(epoch_length=length, epochs=epochs, steps=steps, accumulate=accumulate)


@given(lengths, st.integers(0, 4), limits, st.integers(1, 5))
def test_a_whole_walk(length: int, epochs: int, steps: int | None, accumulate: int) -> None:
    place = position(length, epochs, steps, accumulate)
    total = place.total_steps
    seen = walk(place)
    assert place.step == total == min(epochs * -(-length // accumulate), 10**9 if steps is None else steps)
    assert [(epoch, batch) for _, epoch, batch, _, _ in seen] == [
        (number // length, number % length) for number in range(len(seen))
    ]
    windows: dict[int, list[tuple[int, bool]]] = {}
    for step, _, _, size, end in seen:
        windows.setdefault(step, []).append((size, end))
    assert sorted(windows) == list(range(total or 0))
    for window in windows.values():
        assert {size for size, _ in window} == {len(window)}, "the size of a window is known at its first batch"
        assert [end for _, end in window] == [False] * (len(window) - 1) + [True]
        assert len(window) <= accumulate


@given(lengths, st.integers(1, 4), limits, st.integers(1, 5), st.data())
def test_a_walk_begun_at_any_boundary_is_the_rest_of_the_walk(
    length: int, epochs: int, steps: int | None, accumulate: int, data: st.DataObject
) -> None:
    straight = walk(position(length, epochs, steps, accumulate))
    starts = [n for n, entry in enumerate(straight) if n == 0 or straight[n - 1][0] != entry[0]]
    if not starts:
        return
    start = data.draw(st.sampled_from(starts))
    place = position(length, epochs, steps, accumulate)
    place.step, place.epoch, place.handed = straight[start][:3]
    assert walk(place) == straight[start:]


@given(lengths, st.integers(1, 3), st.integers(1, 5))
def test_a_cursor_at_an_epochs_end_is_the_next_ones_start(length: int, epochs: int, accumulate: int) -> None:
    place = position(length, epochs, None, accumulate)
    for _ in range(length):
        place.hand()
    place.finish_step()
    place.next_epoch()
    assert (place.cursor().epoch, place.cursor().batch) == (1, 0)


def test_length_that_is_not_known() -> None:
    place = Position(epoch_length=None, epochs=2, steps=None, accumulate=1)
    assert place.total_steps is None
    assert place.steps_per_epoch is None
    assert not place.epoch_exhausted
    assert place.window_size == 1
    assert Position(epoch_length=None, epochs=2, steps=7, accumulate=1).total_steps == 7


def test_nothing_to_do() -> None:
    assert position(5, 0, None, 1).is_complete
    assert position(5, 3, 0, 1).is_complete
    assert not position(5, 1, 1, 1).is_complete
