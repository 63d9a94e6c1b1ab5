"""The comparison of two starts' settings: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.core.errors import SettingChanged, UsageError
from stepfast.policy.settings import Change, accept, check_allowed, compare, show

values = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text(), st.lists(st.integers(), max_size=3))
settings_of = st.dictionaries(st.sampled_from(["seed", "optimizer.lr", "optimizer.class", "data.batch_size"]), values)


@given(settings_of)
def test_the_same_settings_do_not_differ(found: dict[str, object]) -> None:
    assert compare(found, dict(reversed(found.items()))) == []


@given(settings_of, settings_of)
def test_a_difference_is_seen_from_both_sides_and_has_both_values(
    one: dict[str, object], other: dict[str, object]
) -> None:
    there = compare(one, other)
    assert {(c.key, repr(c.was), repr(c.now)) for c in there} == {
        (c.key, repr(c.now), repr(c.was)) for c in compare(other, one)
    }
    for change in there:
        assert (change.was, change.now) == (one.get(change.key), other.get(change.key))


@pytest.mark.parametrize(("was", "now"), [(1, 1.0), (1, True), (0.1, 0.1 + 1e-17 + 2e-17), ([1, 2], [2, 1]), (None, 0)])
def test_what_differs_and_what_does_not(was: object, now: object) -> None:
    assert bool(compare({"a": was}, {"a": now})) == (repr(was) != repr(now))


def test_a_list_read_back_from_json_is_the_tuple_that_was_given() -> None:
    assert compare({"optimizer.betas": [0.9, 0.99]}, {"optimizer.betas": (0.9, 0.99)}) == []


def test_a_class_is_named_before_what_follows_from_it() -> None:
    was = {"optimizer.class": "SGD", "optimizer.momentum": 0.9}
    now = {"optimizer.class": "AdamW", "optimizer.amsgrad": False}
    assert [change.key for change in compare(was, now)] == [
        "optimizer.class",
        "optimizer.amsgrad",
        "optimizer.momentum",
    ]


CHANGES = [Change(key="optimizer.lr", was=0.0003, now=0.001), Change(key="seed", was=None, now=3)]


def test_refusal_has_both_values_and_both_ways_on() -> None:
    with pytest.raises(SettingChanged) as raised:
        accept(CHANGES[:1], (), path="runs/gpt", script="train.py")
    assert raised.value.message == "runs/gpt was started with optimizer.lr=0.0003; train.py has 0.001"
    assert raised.value.hint == (
        "go on with the new value: STEPFAST_CHANGE=optimizer.lr python train.py; "
        "start over: STEPFAST_RESUME=fresh python train.py"
    )


def test_the_line_that_goes_on_names_what_was_allowed_already() -> None:
    with pytest.raises(SettingChanged) as raised:
        accept(CHANGES, ("optimizer.lr", "unheard.of"), path="runs/gpt", script="train.py")
    assert "was started with seed=nothing; train.py has 3" in raised.value.message
    assert "STEPFAST_CHANGE=optimizer.lr,seed python" in raised.value.hint


def test_allowed_changes_are_given_back() -> None:
    assert accept(CHANGES, ("seed", "optimizer.lr"), path="p", script="s") == CHANGES
    assert accept([], (), path="p", script="s") == []


def test_names_are_trimmed_and_values_refused() -> None:
    assert check_allowed([" a ", "", "b"]) == ("a", "b")
    with pytest.raises(UsageError):
        check_allowed(["optimizer.lr=0.1"])


@pytest.mark.parametrize(
    ("value", "text"), [(None, "nothing"), ("SGD", "SGD"), (0.1, "0.1"), ([1], "[1]"), (True, "true")]
)
def test_values_as_people_read_them(value: object, text: str) -> None:
    assert show(value) == text
