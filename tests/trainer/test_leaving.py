"""Left on purpose or by an exception: what the loop's own frame tells when its iterator is closed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

from stepfast.trainer.leaving import Consumer, consumer, left_by_break


class Error(Exception):
    pass


class Watched:
    """Iterated in place, as `run.epochs()` is: the iterator is nowhere but in the loop."""

    def __init__(self) -> None:
        self.found: list[bool] = []

    def __iter__(self) -> Iterator[int]:
        asked: Consumer = ()
        try:
            for number in range(10):
                asked = consumer(sys._getframe().f_back)
                yield number
        except GeneratorExit:
            self.found.append(left_by_break(sys._getframe().f_back, asked))
            raise


def by_break(batches: Iterable[int]) -> None:
    for batch in batches:
        if batch == 3:
            break


def by_break_in_try(batches: Iterable[int]) -> None:
    for batch in batches:
        try:
            if batch == 3:
                break
        finally:
            batch += 1


def by_break_in_with(batches: Iterable[int]) -> None:
    for batch in batches:
        with contextlib.nullcontext():
            if batch == 3:
                break


def by_return(batches: Iterable[int]) -> int:
    for batch in batches:
        if batch == 3:
            return batch
    return 0


def by_return_of_a_call(batches: Iterable[int]) -> int:
    for batch in batches:
        if batch == 3:
            return max(batch, 1)
    return 0


def by_break_with_else(batches: Iterable[int]) -> None:
    for batch in batches:
        if batch == 3:
            break
    else:
        raise AssertionError


def by_raise(batches: Iterable[int]) -> None:
    for batch in batches:
        if batch == 3:
            raise Error


def by_raise_in_a_call(batches: Iterable[int]) -> None:
    def fail() -> None:
        raise Error

    for batch in batches:
        if batch == 3:
            fail()


def by_raise_caught_outside(batches: Iterable[int]) -> None:
    try:
        for batch in batches:
            if batch == 3:
                raise Error
    except Error:
        raise


def by_assert(batches: Iterable[int]) -> None:
    for batch in batches:
        try:
            assert batch != 3
        except AssertionError:
            raise Error from None


def by_key_error(batches: Iterable[int]) -> None:
    table = {0: 0, 1: 0, 2: 0}
    try:
        for batch in batches:
            table[batch]
    except KeyError:
        raise Error from None


def by_exit(batches: Iterable[int]) -> None:
    try:
        for batch in batches:
            if batch == 3:
                sys.exit(1)
    except SystemExit:
        raise Error from None


@pytest.mark.parametrize(
    "leave", [by_break, by_break_in_try, by_break_in_with, by_return, by_return_of_a_call, by_break_with_else]
)
def test_on_purpose(leave: Callable[[Iterable[int]], object]) -> None:
    watched = Watched()
    leave(watched)
    assert watched.found == [True]


@pytest.mark.parametrize(
    "leave", [by_raise, by_raise_in_a_call, by_raise_caught_outside, by_assert, by_key_error, by_exit]
)
def test_by_an_exception(leave: Callable[[Iterable[int]], object]) -> None:
    watched = Watched()
    with pytest.raises(Error):
        leave(watched)
    assert watched.found == [False]


def through(batches: Iterable[int]) -> Iterator[int]:
    for batch in batches:  # noqa: UP028 - as tqdm does
        yield batch


def test_on_purpose_through_generators() -> None:
    watched = Watched()
    for number in through(through(watched)):
        if number == 3:
            break
    assert watched.found == [True]


def test_by_an_exception_through_generators() -> None:
    def loop() -> None:
        for number in through(through(watched)):
            if number == 3:
                raise Error

    watched = Watched()
    with pytest.raises(Error):
        loop()
    assert watched.found == [False]


def test_by_an_exception_inside_a_generator() -> None:
    def failing() -> Iterator[int]:
        for number in through(watched):
            if number == 3:
                raise Error
            yield number

    watched = Watched()
    with pytest.raises(Error):
        list(failing())
    assert watched.found == [False]


@pytest.mark.parametrize("leave", [by_break, by_return, by_raise, by_key_error])
def test_iterator_in_a_variable_is_in_doubt_an_exception(leave: Callable[[Iterable[int]], object]) -> None:
    """It is closed by whoever lets go of it last, at any instruction: never taken for a break."""
    watched = Watched()

    def main() -> None:
        iterator = iter(watched)
        with contextlib.suppress(Error):
            leave(iterator)

    main()
    assert watched.found == [False]


def test_iterator_closed_by_hand_is_in_doubt_an_exception() -> None:
    watched = Watched()
    iterator = iter(watched)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert watched.found == [False]
    assert not left_by_break(None, ())
    assert not left_by_break(sys._getframe(), ())


def test_to_the_end_is_neither() -> None:
    watched = Watched()
    for _ in watched:
        pass
    assert watched.found == []
