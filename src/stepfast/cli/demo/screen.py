"""What is seen while the demo runs: bars on a terminal, lines anywhere else. Goes to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from stepfast.report.bars import AGAIN, LEFT, NEW, SKIPPED, cells, session_parts
from stepfast.report.lines import count
from stepfast.report.plain import escaped

if TYPE_CHECKING:
    from rich.progress import Progress

_STARTING = "starting"
_EVERY = 250


class Screen(Protocol):
    """Sessions are told apart by their names."""

    def begin(self, name: str, *, total: int, seen: int) -> None:
        """A session appears. Batches below `seen` were computed by one before it."""

    def at(self, name: str, batch: int) -> None: ...

    def state(self, name: str, words: str) -> None:
        """What is to be read beside the bar."""

    def line(self, name: str, text: str) -> None:
        """Something a session said."""

    def say(self, text: str) -> None:
        """Something the demo says."""


class Lines:
    """For logs and pipes: one line for every 250 batches."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}

    def begin(self, name: str, *, total: int, seen: int) -> None:
        self._totals[name] = total
        self._print(name, "starts")

    def at(self, name: str, batch: int) -> None:
        total = self._totals[name]
        if batch and (batch % _EVERY == 0 or batch == total):
            self._print(name, f"{count(batch)} of {count(total)} batches")

    def state(self, name: str, words: str) -> None:
        self._print(name, words)

    def line(self, name: str, text: str) -> None:
        self._print(name, text)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _print(self, name: str, text: str) -> None:
        print(f"{name + ':':<16}{escaped(text)}", file=sys.stderr, flush=True)


class Bars:
    """For terminals. rich draws; NO_COLOR is its to respect, and the letters of the bars tell the parts apart."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, int] = {}

    def begin(self, name: str, *, total: int, seen: int) -> None:
        self._tasks[name] = self._progress.add_task(f"{name:<12}", total=total, first=None, seen=seen, words=_STARTING)

    def at(self, name: str, batch: int) -> None:
        number = self._tasks[name]
        task = self._progress.tasks[number]
        if task.fields["first"] is None:
            self._progress.update(number, first=batch, words="")  # type: ignore[arg-type]
        self._progress.update(number, completed=batch)  # type: ignore[arg-type]

    def state(self, name: str, words: str) -> None:
        self._progress.update(self._tasks[name], words=words)  # type: ignore[arg-type]

    def line(self, name: str, text: str) -> None:
        self._say(f"{name + ':':<16}{escaped(text)}", style="dim")

    def say(self, text: str) -> None:
        self._say(text, style="bold")

    def _say(self, text: str, style: str) -> None:
        self._progress.console.print(text, style=style, markup=False, highlight=False)


@contextmanager
def screen_for_terminal() -> Iterator[Screen]:
    """Bars where stderr is a terminal that can move its cursor, else lines."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    styles = {SKIPPED: "dim", AGAIN: "yellow", NEW: "green", LEFT: "dim"}

    class Cells(ProgressColumn):
        def render(self, task: Task) -> Text:
            width = max(10, min(60, console.width - 58))
            total, at = int(task.total or 1), int(task.completed)
            first, seen = task.fields["first"], task.fields["seen"]
            parts = [] if first is None else session_parts(at, first=first, seen=seen)
            text = Text()
            for letter in cells(width, total, parts):
                text.append(letter, style=styles[letter])
            return text

    console = Console(stderr=True)
    if console.is_dumb_terminal:
        yield Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        Cells(),
        TextColumn("{task.completed:>5,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=10) as progress:
        yield Bars(progress)
