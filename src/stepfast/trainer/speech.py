"""What a Run says: one line at a time on stderr through the logger `stepfast`, and the line of progress."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from stepfast.data.position import Position
from stepfast.report.lines import age, count
from stepfast.trainer.environment import rank

LOGGER = logging.getLogger("stepfast")
_REDRAW_S = 0.1


class Speech:
    """Talks on stderr, rank 0 only. A logger that somebody has set up gets the lines instead."""

    def __init__(self, path: str, *, show_progress: bool) -> None:
        self._path = path
        self._is_speaking = rank() == 0
        self._shows = show_progress and self._is_speaking and sys.stderr.isatty()
        self._drawn_at = 0.0
        self._width = 0
        self._rate: float | None = None
        self._last: tuple[float, int] | None = None

    def say(self, text: str) -> None:
        if not self._is_speaking:
            return
        self._erase()
        if LOGGER.isEnabledFor(logging.INFO) and LOGGER.hasHandlers():
            LOGGER.info(text)
        else:
            print(f"stepfast: {text}", file=sys.stderr, flush=True)

    def started(self, path: Path, total_steps: int | None) -> None:
        length = "" if total_steps is None else f", {count(total_steps)} steps"
        self.say(f"new run in {path}{length}; kill it anywhere and start it again to go on")

    def progress(
        self, position: Position, values: Mapping[str, float], durable: tuple[int | None, float | None] | None
    ) -> None:
        """Draw the line, ten times a second at most."""
        now = time.monotonic()
        if not self._shows or now - self._drawn_at < _REDRAW_S:
            return
        if self._last is not None and position.step > self._last[1]:
            rate = (position.step - self._last[1]) / (now - self._last[0])
            self._rate = rate if self._rate is None else 0.8 * self._rate + 0.2 * rate
        self._last, self._drawn_at = (now, position.step), now
        epochs = f"/{position.epochs}" if position.epochs else ""
        batches = f"/{count(position.epoch_length)}" if position.epoch_length else ""
        parts = [f"epoch {position.epoch + 1}{epochs}", f"{count(position.handed)}{batches}"]
        parts += [f"{name} {value:.4g}" for name, value in list(values.items())[:2]]
        if self._rate is not None:
            parts.append(f"{self._rate:,.1f} steps/s")
        line = "  ".join(parts)
        if durable is not None and durable[0] is not None:
            line += f" | disk: step {count(durable[0])}"
            line += f", {age(now - durable[1])}" if durable[1] is not None else ""
        print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(line)

    def end_progress(self) -> None:
        self._erase()

    def _erase(self) -> None:
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)
            self._width = 0
