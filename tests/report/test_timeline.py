"""The picture: its figures come from its arguments, it is well formed and needs nothing from outside."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.report.timeline import THE_CASE, THE_CASE_NOTE, WIDTH, Timeline, draw_timeline

SVG = "{http://www.w3.org/2000/svg}"


def words_of(picture: str) -> str:
    return " | ".join(element.text or "" for element in ET.fromstring(picture).iter(f"{SVG}text"))


def test_the_case_shows_its_figures() -> None:
    words = words_of(draw_timeline(THE_CASE))
    for expected in (
        "500 in the checkpoint | 26.8 min",
        "400 in memory only | 21.5 min",
        "900 batches finished · 48.3 min",
        "500 skipped | 0 min",
        "400 computed again | 21.5 min",
        "370 new | 19.9 min",
        "770 of 1,270 computed · 41.3 min",
        "89.6 min | both sessions",
        "68.2 min | without the kill",
        "21.5 min (31 %)",
    ):
        assert expected in words


def test_the_figures_follow_the_arguments() -> None:
    words = words_of(draw_timeline(Timeline(total=3000, checkpoint=1000, crash=1600, seconds_a_batch=0.6)))
    for expected in (
        "1,000 skipped",
        "600 computed again | 6.0 min",
        "1,400 new | 14.0 min",
        "6.0 min (20 %)",
    ):
        assert expected in words


def test_the_note_states_the_documents_figures_correctly() -> None:
    """The document counts 899 batches in session 1, cuts decimals off, and adds what it has cut."""
    tenths = [int(batches * 322 / 600) for batches in (899, 400, 1270)]
    assert tenths == [482, 214, 681]
    for figure in ("48.2", "21.4", "89.5", "68.1"):
        assert figure in THE_CASE_NOTE
    assert f"{(482 + 413) / 10}" == "89.5"


def test_it_needs_nothing_from_outside_and_follows_the_readers_scheme() -> None:
    picture = draw_timeline(THE_CASE, verdict="a < b & c", notes=[THE_CASE_NOTE])
    assert "a < b & c" in words_of(picture)
    assert "prefers-color-scheme: dark" in picture
    without_namespace = picture.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|<script|<image|@import|@font-face|href=", without_namespace)


@given(st.integers(1, 10**7), st.data())
def test_any_run_gives_a_picture_whose_bars_cover_the_run(total: int, data: st.DataObject) -> None:
    crash = data.draw(st.integers(0, total))
    checkpoint = data.draw(st.integers(0, crash))
    timeline = Timeline(total=total, checkpoint=checkpoint, crash=crash, seconds_a_batch=0.01)
    root = ET.fromstring(draw_timeline(timeline, verdict="equal", notes=["small print"]))
    assert timeline.checkpoint + timeline.again + timeline.new == total
    for element in root.iter():
        if (x := element.get("x")) is not None:
            assert -1 <= float(x) <= WIDTH


@pytest.mark.parametrize(
    "numbers",
    [
        {"total": 0, "checkpoint": 0, "crash": 0},
        {"total": 10, "checkpoint": 5, "crash": 4},
        {"total": 10, "checkpoint": 5, "crash": 11},
        {"total": 10, "checkpoint": -1, "crash": 4},
    ],
)
def test_numbers_that_cannot_be_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no such run"):
        Timeline(**numbers, seconds_a_batch=1.0)


def test_the_picture_in_the_readme_is_the_one_we_draw() -> None:
    picture = Path(__file__).parents[2] / "docs/assets/two-sessions.svg"
    assert picture.read_text("utf-8") == draw_timeline(THE_CASE, notes=[THE_CASE_NOTE]), (
        "draw it again: python -m tests.report.draw_asset"
    )
