"""Text that comes from files and other people's scripts, made safe to show; tables of letters. Pure functions."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

# Control, format (turns the reading direction), surrogates, private use, separators of lines.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def escaped(text: object) -> str:
    """The text with everything a terminal would act on, or a person would not see, as an escape: `\\x1b[31m`."""
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    return "".join(_escaped(letter) if unicodedata.category(letter) in _HIDDEN else letter for letter in shown)


def escaped_lines(text: str) -> str:
    """The same, line ends kept."""
    return "\n".join(map(escaped, text.split("\n")))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Lines of columns that are as wide as their widest cell. Cells are escaped here; columns in `right` end flush."""
    cells = [[escaped(cell) for cell in row] for row in (header, *rows)]
    widths = [max(_width(row[k]) for row in cells) for k in range(len(header))]

    def padded(k: int, cell: str) -> str:
        room = " " * (widths[k] - _width(cell))
        return room + cell if k in right else cell + room

    return ["  ".join(padded(k, cell) for k, cell in enumerate(row)).rstrip() for row in cells]


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def _width(text: str) -> int:
    """Places on a terminal: wide letters take two, marks that combine none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
