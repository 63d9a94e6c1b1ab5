"""Runs a script as `__main__` in a forked child, with the fault of a kill planted in it. The product does not know.

Places between the named points are reached through torch's own global hooks and by wrapping the product's methods
from outside; the wrappers only look, so a run whose moment never comes is the ordinary run.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stepfast.core import points
from stepfast.trainer import run as run_module
from stepfast.trainer.agent_process import AgentProcess
from stepfast.trainer.keeping import Kept
from stepfast.trainer.loop import Loop
from stepfast.trainer.run import Run
from stepfast.wire.messages import Snapshot
from tests.kill.moments import FIRED, MOMENT, Moment


def main() -> None:
    """The script and its arguments are in sys.argv[1:]."""
    path = sys.argv[1]
    words = os.environ.get(MOMENT, "")
    if words and not (moment := Moment.parse(words)).is_in_agent:
        plant(moment)
    # Generators that a script leaves alone are part of what is compared, too: they begin the same in every start.
    random.seed(0)
    np.random.seed(0)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(path))
    script = types.ModuleType("__main__")
    script.__dict__.update(__file__=path, __builtins__=__builtins__, __spec__=None)
    sys.modules["__main__"] = script
    exec(compile(Path(path).read_bytes(), path, "exec"), script.__dict__)


def plant(moment: Moment) -> None:
    """Make `moment` happen in this process."""

    def in_step(*_: object, **__: object) -> None:
        run = _run()
        if run._position.in_step and not run._loop._exhausted and run.step == moment.step:
            _kill(moment)

    def at_step(*_: object, **__: object) -> None:
        if _run().step == moment.step:
            _kill(moment)

    def at_first_fetch() -> None:
        run = _run()
        # A boundary of data without a length comes after the fetch; the step in hand is then the one before.
        if run.step == moment.step and not run._position.in_step:
            _kill(moment)

    def at_snapshot(self: AgentProcess, message: object) -> None:
        if isinstance(message, Snapshot) and _run().step == moment.step:
            _kill(moment)

    match moment.place:
        case "boundary":
            points.plant("loop:boundary", at_step)
        case "fetch":
            points.plant("loop:before-fetch", at_first_fetch)
        case "forward":
            register_module_forward_pre_hook(in_step)
        case "backward":
            _before(torch.Tensor, "backward", in_step)
        case "before-update":
            register_optimizer_step_pre_hook(in_step)
        case "after-update":
            register_optimizer_step_post_hook(in_step)
        case "log":
            _before(Run, "log", in_step)
        case "captured":
            _before(AgentProcess, "send", at_snapshot)
        case "handed-over":
            _after(AgentProcess, "send", at_snapshot)
        case "tail-begun":
            _after_batches(at_step)
        case "tail-done":
            _before(Loop, "_after_epoch", at_step)
        case "complete":
            _before(Kept, "completed", at_step)
        case "closing":
            _before(AgentProcess, "close", at_step)
        case _:
            raise ValueError(f"no such place: {moment.place}")


def _run() -> Run:
    (reference,) = run_module._open_runs.values()
    run = reference()
    assert run is not None
    return run


_has_fired = False
"""Only the agent's death leaves anybody who could come here again."""


def _kill(moment: Moment) -> None:
    global _has_fired
    keep = _run()._keep
    if _has_fired or keep is None:
        return
    _has_fired = True
    Path(os.environ[FIRED]).write_text(str(moment), "utf-8")
    if moment.victim in ("agent", "both"):
        os.kill(keep.saver.agent.pid, signal.SIGKILL)
    if moment.victim in ("trainer", "both"):
        os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str, fault: Callable[..., None]) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        fault(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, fault: Callable[..., None]) -> None:
    original = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        fault(*args, **kwargs)
        return result

    setattr(owner, name, wrapped)


def _after_batches(fault: Callable[..., None]) -> None:
    original: Any = Loop._epoch_batches

    def wrapped(self: Loop) -> Any:
        yield from original(self)
        fault()

    Loop._epoch_batches = wrapped  # type: ignore[method-assign]
