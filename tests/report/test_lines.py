"""Words for numbers: the edges between units, where a rounded value would read oddly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.report import lines


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (2_100_000_000, "2.1 GB"),
        (10**18, "1,000.0 PB"),
    ],
)
def test_size(size_bytes: int, words: str) -> None:
    assert lines.size(size_bytes) == words


@pytest.mark.parametrize(
    ("duration_s", "words"),
    [
        (0, "0.0 ms"),
        (0.0004, "0.4 ms"),
        (0.25, "250 ms"),
        (0.9996, "1.0 s"),
        (12.34, "12.3 s"),
        (59.97, "1 min"),
        (245, "4 min 5 s"),
        (3599.8, "1 h"),
        (7800, "2 h 10 min"),
        (86_399, "1 d"),
        (3 * 86_400 + 4 * 3600, "3 d 4 h"),
        (-5, "-5.0 s"),
    ],
)
def test_duration(duration_s: float, words: str) -> None:
    assert lines.duration(duration_s) == words


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (-60, "just now"),
        (0.4, "just now"),
        (17, "17 s ago"),
        (59.7, "1 min ago"),
        (17 * 60, "17 min ago"),
        (3600, "1 h ago"),
        (47 * 3600, "47 h ago"),
        (49 * 3600, "2 days ago"),
    ],
)
def test_age(age_s: float, words: str) -> None:
    assert lines.age(age_s) == words


def test_counts() -> None:
    assert lines.count(3810) == "3,810"
    assert lines.counted(1, "step") == "1 step"
    assert lines.counted(0, "step") == "0 steps"
    assert lines.counted(3810, "batch", "batches") == "3,810 batches"
    assert lines.percent(400, 1270) == "31 %"
    assert lines.percent(0, 0) == "–"


@given(st.integers(min_value=1000, max_value=10**17))
def test_a_size_never_shows_four_figures_before_the_point(size_bytes: int) -> None:
    assert 1.0 <= float(lines.size(size_bytes).split()[0]) < 1000


@given(st.floats(min_value=0, max_value=1e9))
def test_a_duration_never_shows_sixty_of_a_smaller_unit(duration_s: float) -> None:
    words = lines.duration(duration_s)
    assert "60 s" not in words.split(" min ")[-1] or " min" not in words
    assert "60 min" not in words
    assert " 24 h" not in f" {words}"
    assert "1000 ms" not in words
