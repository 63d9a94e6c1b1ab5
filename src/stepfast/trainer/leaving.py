"""How a loop was left: by `break` or `return`, or by an exception. Python closes our iterator in the same way for both.

The loop's own frame tells: `break` and `return` drop the iterator by an instruction that pops it, an exception while
the instruction that raised is still current. In doubt it was an exception.
"""

from __future__ import annotations

import dis
import inspect
from types import FrameType

_POPS = {dis.opmap[name] for name in ("POP_TOP", "POP_ITER", "END_FOR") if name in dis.opmap}


def left_by_break(frame: FrameType | None) -> bool:
    """Whether the loop whose iterator is being closed was left on purpose. `frame` is the caller of our generator."""
    while frame is not None:
        code = frame.f_code
        if code.co_code[frame.f_lasti] in _POPS:
            return True
        if not code.co_flags & inspect.CO_GENERATOR or not _is_suspended_at_yield(frame):
            return False
        frame = frame.f_back  # a generator around us (tqdm) that is being closed itself
    return False


def _is_suspended_at_yield(frame: FrameType) -> bool:
    instruction = frame.f_code.co_code[frame.f_lasti]
    return dis.opname[instruction] in ("YIELD_VALUE", "RESUME", "SEND", "INSTRUMENTED_YIELD_VALUE")
