"""How commands speak: data on stdout, talk on stderr, colour only where it is wanted. Not what they say."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import IO, Any

import click

JSON_VERSION = 1
"""Of what `--json` prints. Fields are only added; a field that changes its meaning makes it 2."""


def put(text: str = "", *, style: str | None = None, bold: bool = False) -> None:
    """A line of data."""
    _print(text, sys.stdout, style, bold)


def put_lines(lines: Iterable[str]) -> None:
    for line in lines:
        put(line)


def put_table(lines: list[str]) -> None:
    """The first line is the header."""
    put(lines[0], bold=True)
    put_lines(lines[1:])


def talk(text: str, *, style: str | None = None) -> None:
    """A line about the data, for people only."""
    _print(text, sys.stderr, style, False)


def put_json(value: dict[str, Any]) -> None:
    """One JSON document; characters beyond ASCII are escaped, so that no terminal acts on them."""
    put(json.dumps({"version": JSON_VERSION, **value}, indent=1, ensure_ascii=True, allow_nan=False, default=_plain))


def wants_colour(stream: IO[str]) -> bool:
    """On a terminal, unless NO_COLOR is set to anything (https://no-color.org) or the terminal is dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _print(text: str, stream: IO[str], style: str | None, bold: bool) -> None:
    if (style or bold) and wants_colour(stream):
        text = click.style(text, fg=style, bold=bold or None)
    print(text, file=stream, flush=True)


def _plain(value: object) -> Any:
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not for JSON")
