"""Escaping, tables, bars of letters."""

from __future__ import annotations

import pytest

from stepfast.report.bars import AGAIN, LEFT, NEW, SKIPPED, cells, session_parts
from stepfast.report.events import words
from stepfast.report.plain import escaped, escaped_lines, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢 ×", "plain é 漢 ×"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202egnp", r"\u202egnp"),
        ("\u200b\ufeff\u2028", r"\u200b\ufeff\u2028"),
        ("\udcff", r"\udcff"),
        ("\x9b31m", r"\x9b31m"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_line_ends_can_be_kept() -> None:
    assert escaped_lines("a\x1b\nb") == "a\\x1b\nb"


def test_table() -> None:
    assert table(("n", "name"), [("1", "漢字"), ("22", "é"), ("3", "")], right=frozenset((0,))) == [
        " n  name",
        " 1  漢字",
        "22  é",
        " 3",
    ]


def test_bars() -> None:
    assert cells(10, 100, [(50, SKIPPED), (90, AGAIN), (100, NEW)]) == SKIPPED * 5 + AGAIN * 4 + NEW
    assert cells(10, 100, [(30, NEW)]) == NEW * 3 + LEFT * 7
    assert cells(10, 1000, [(1, NEW)]) == NEW + LEFT * 9
    assert cells(10, 100, []) == LEFT * 10
    for at in range(500, 1271, 7):
        assert len(cells(60, 1270, session_parts(at, first=500, seen=900))) == 60


def test_parts_of_a_session() -> None:
    assert session_parts(700, first=500, seen=900) == [(500, SKIPPED), (700, AGAIN), (700, NEW)]
    assert cells(12, 1200, session_parts(700, first=500, seen=900)) == SKIPPED * 5 + AGAIN * 2 + LEFT * 5


def test_unknown_and_bare_events_have_words() -> None:
    assert words({"event": "new-kind", "time": "t", "a": 1}) == "new-kind: a 1"
    assert words({}) == "?"
    for kind in ("opened", "commit", "failed", "tidied", "closed", "resumed", "resume-checked", "batches-left-out"):
        assert words({"event": kind})
