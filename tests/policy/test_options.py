"""Options that cannot be recorded are refused where they are written, not at the first save."""

from __future__ import annotations

import math

import pytest

from stepfast import Options
from stepfast.core.errors import UsageError

REFUSED = {
    "a number as a name": {1: 2},
    "a number as a name, inside": {"m": {1: 2}},
    "half a surrogate": {"s": "\ud800"},
    "half a surrogate in a name": {"\udfff": 1},
    "half a surrogate in a name, inside": {"m": {"\ud800": 1}},
    "not a number": {"x": math.nan},
    "infinite": {"x": [1.0, -math.inf]},
    "2**70": {"k": 2**70},
    "2**63": {"k": 2**63},
    "below -2**63": {"k": {"deep": [-(2**63) - 1]}},
    "an object": {"o": object()},
    "bytes": {"b": b"x"},
    "a set": {"s": {1}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_hyperparameters(name: str) -> None:
    with pytest.raises(UsageError) as raised:
        Options(hyperparameters=REFUSED[name])
    assert raised.value.hint
    raised.value.message.encode("utf-8")  # can be shown


@pytest.mark.parametrize("given", [3, "width", [("width", 64)], None])
def test_hyperparameters_that_are_no_dict(given: object) -> None:
    with pytest.raises(UsageError, match="is not a dict of values by name"):
        Options(hyperparameters=given)


def test_taken_hyperparameters() -> None:
    given = {"k": 2**63 - 1, "least": -(2**63), "s": "größe \U0001f600\n", "deep": {"a": [1, 2.5, None, True, "x"]}}
    assert Options(hyperparameters=given).hyperparameters == given
