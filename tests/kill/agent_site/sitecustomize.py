"""Plants the fault of a kill in the agent. Python imports this file at start because the harness puts its folder on
PYTHONPATH; in any other process, and when the fault has fired before, it does nothing."""

import os
import sys


def _plant(words: str, fired_path: str) -> None:
    from stepfast.core import points

    where, _, victim = words.partition(" ")
    place, _, number = where.partition("#")
    passed = 0

    def fault() -> None:
        nonlocal passed
        passed += 1
        if passed != int(number):
            return
        with open(fired_path, "w", encoding="utf-8") as file:
            file.write(words)
        if victim in ("trainer", "both"):
            os.kill(os.getppid(), 9)
        if victim in ("agent", "both"):
            os.kill(os.getpid(), 9)

    points.plant(place, fault)


_words = os.environ.get("KILL_MOMENT", "")
if "#" in _words and "stepfast.agent" in sys.orig_argv and not os.path.exists(os.environ["KILL_FIRED"]):
    _plant(_words, os.environ["KILL_FIRED"])
