"""The one place of the product that reads the environment of a script."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from stepfast.core.errors import UsageError
from stepfast.policy.options import RESUME_MODES
from stepfast.policy.settings import check_allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a person set from outside for this start."""

    off: bool
    resume: str
    change: tuple[str, ...]
    script: str


def read(resume: str, change: tuple[str, ...]) -> Environment:
    """Variables beat arguments: they are how one start differs from the script."""
    mode = os.environ.get("STEPFAST_RESUME", "") or resume
    if mode not in RESUME_MODES:
        where = "STEPFAST_RESUME" if os.environ.get("STEPFAST_RESUME") else "resume"
        raise UsageError(f"{where}={mode!r}: known are {', '.join(RESUME_MODES)}", hint=f"{where}=auto")
    allowed = (*change, *os.environ.get("STEPFAST_CHANGE", "").split(","))
    return Environment(
        off=os.environ.get("STEPFAST_OFF", "") not in ("", "0"),
        resume=mode,
        change=check_allowed(allowed),
        script=script_name(),
    )


def script_name() -> str:
    """How the script is called in messages and settings: `train.py`, `package.train`, or nothing in a notebook."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return Path(file).name if file else "this notebook"


def rank() -> int:
    """This process's rank: 0 without a launcher."""
    return _number("RANK", 0)


def world_size() -> int:
    """How many ranks the job has: 1 without a launcher."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    return _number("LOCAL_RANK", 0)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}={text!r} is not a number", hint=f"unset {name}, or let the launcher set it") from None
