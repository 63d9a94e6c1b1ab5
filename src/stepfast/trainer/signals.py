"""Signals while the loop iterates: noted here, acted on at the next boundary. Handlers are put back afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_WATCHED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Signals:
    """What came since it was last asked. Only the main thread of the process that installed it counts."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.pid = os.getpid()
        self._previous: dict[int, Any] = {}
        self.interrupts = 0
        self.terminate = False
        self.save = False

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread() or self._previous:
            return
        for number in _WATCHED:
            previous = signal.getsignal(number)
            if previous is None or (previous is signal.SIG_IGN and number != signal.SIGUSR1):
                continue  # set by C code, or ignored on purpose (nohup)
            if number == signal.SIGINT and previous is not signal.default_int_handler:
                continue  # the script has its own way with Ctrl-C
            self._previous[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        while self._previous:
            number, previous = self._previous.popitem()
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, previous)

    def any(self) -> bool:
        return bool(self.interrupts or self.terminate or self.save)

    def previous(self, number: int) -> Any:
        return self._previous.get(number, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.pid:
            self._in_child(number, frame)
            return
        if number == signal.SIGINT:
            self.interrupts += 1
            if self.interrupts > 1:
                raise KeyboardInterrupt
            self._say("finishing this step, then saving; Ctrl-C again stops now")
        elif number == signal.SIGTERM:
            self.terminate = True
            self._say("SIGTERM: finishing this step, then saving")
        else:
            self.save = True
            if callable(previous := self._previous.get(number)):
                previous(number, frame)

    def _in_child(self, number: int, frame: FrameType | None) -> None:
        """A process that was forked inside the loop. Loader workers leave Ctrl-C to the trainer; all else is as if we
        had never been there."""
        if number == signal.SIGINT and multiprocessing.parent_process() is not None:
            return
        previous = self.previous(number)
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(number, previous)
            os.kill(os.getpid(), number)
