"""How an error of ours that nobody catches ends a script: the message, the place in the user's own code, the hint.

A traceback through our files would hide all three. Every other exception is shown as before.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType

from stepfast.core.errors import StepfastError

_OURS = str(Path(__file__).parents[1])
_installed = False


def install() -> None:
    """Put our words in front of the hook that is there. Once."""
    global _installed
    if _installed:
        return
    _installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, StepfastError):
            print(words(error), file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = hook


def words(error: StepfastError) -> str:
    lines = [f"error: {error.message}"]
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    if theirs:
        lines.append(f"  at {theirs[-1].filename}, line {theirs[-1].lineno}")
    if error.hint:
        lines += ["", f"hint: {error.hint}"]
    return "\n".join(lines)
