"""How a loop was left: by `break` or `return`, or by an exception. Python closes our iterator in the same way for both.

The loop's own frame tells: `break` and `return` drop the iterator by an instruction that pops it, an exception while
the instruction that raised is still current. In doubt it was an exception.
"""

from __future__ import annotations

import dis
import inspect
from types import CodeType, FrameType

_POPS = {dis.opmap[name] for name in ("POP_TOP", "POP_ITER", "END_FOR") if name in dis.opmap}


Consumer = tuple[tuple[int, CodeType], ...]
"""The frames that walk our iterator, nearest first: generators around us, then the loop's own. Numbers, not frames:
a frame kept here would keep itself alive, and the iterator would never be closed."""


def consumer(frame: FrameType | None) -> Consumer:
    """Who asks for a batch now. `frame` is the caller of our generator."""
    found = []
    while frame is not None:
        found.append((id(frame), frame.f_code))
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            break
        frame = frame.f_back
    return tuple(found)


def left_by_break(frame: FrameType | None, asked: Consumer) -> bool:
    """Whether the loop whose iterator is being closed was left on purpose.

    `frame` is the caller of our generator, `asked` who asked for the batch in hand. An iterator in a variable may be
    closed long after its loop, by whatever frame lets go of it last: that one's instruction tells nothing.
    """
    while frame is not None:
        code = frame.f_code
        # A generator around us may be gone already when it lets go of us; the one after it in the chain does then.
        if (id(frame), code) not in asked:
            return False
        if code.co_code[frame.f_lasti] in _POPS:
            return True
        if not code.co_flags & inspect.CO_GENERATOR or not _is_suspended_at_yield(frame):
            return False
        frame = frame.f_back  # a generator around us (tqdm) that is being closed itself
    return False


def _is_suspended_at_yield(frame: FrameType) -> bool:
    instruction = frame.f_code.co_code[frame.f_lasti]
    return dis.opname[instruction] in ("YIELD_VALUE", "RESUME", "SEND", "INSTRUMENTED_YIELD_VALUE")
