"""What a reader would refuse is refused before it is written, by name."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast.core.errors import StateNotStorable, UsageError
from stepfast.files import strict_json
from stepfast.store import storable
from stepfast.store.storable import LOOP_DEPTH, MAX_LOOP_BYTES, check_storable, encode_loop


def nested(levels: int) -> Any:
    value: Any = 1
    for number in range(levels):
        value = [value] if number % 2 else {"k": value}
    return value


def test_the_writer_of_loop_json_has_its_readers_depth() -> None:
    text = '[{"}\\' * 300
    for levels in (1, LOOP_DEPTH - 1):
        loop = {"tree": {"deep": nested(levels - 1), text: text}}
        data = encode_loop(loop)
        assert strict_json.loads(data, max_bytes=MAX_LOOP_BYTES, max_depth=LOOP_DEPTH) == loop
    deep = {"tree": {"fine": 1, "deep": nested(LOOP_DEPTH - 1)}}
    with pytest.raises(StateNotStorable, match=r"loop\.tree\.deep.* is nested deeper"):
        encode_loop(deep)
    with pytest.raises(StateNotStorable):
        encode_loop({"tree": "\udc80"})


def test_the_writer_of_loop_json_has_its_readers_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storable, "MAX_LOOP_BYTES", 1000)
    with pytest.raises(StateNotStorable, match=r"loop\.tree\.big alone"):
        encode_loop({"tree": {"big": "x" * 2000, "small": 1}})


def test_a_value_for_the_manifest_is_checked_and_named() -> None:
    check_storable({"lr": 0.1, "layers": [1, 2], "name": "ä", "none": None}, "hyperparameters")
    itself: list[Any] = []
    itself.append(itself)
    for bad in ("\udc80", {"a\udc80": 1}, {1: 2}, float("nan"), {"x": object()}, 2**70, itself, nested(40)):
        with pytest.raises(UsageError, match=r"^hyperparameters"):
            check_storable(bad, "hyperparameters")
