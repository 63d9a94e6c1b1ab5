"""How much of the loop's time Stepfast may spend on looking. Pure: time is a parameter."""

from __future__ import annotations

from dataclasses import dataclass

MAX_EVERY = 1024


@dataclass(slots=True, kw_only=True)
class Allowance:
    """A share of the time that has passed, a little for every step, and something to begin with."""

    share: float
    first_s: float
    step_s: float = 0.0
    spent_s: float = 0.0

    def permits(self, *, elapsed_s: float, num_steps: int) -> bool:
        return self.spent_s <= self.first_s + self.share * elapsed_s + self.step_s * num_steps


@dataclass(slots=True)
class Thinning:
    """Look at every step, or where that costs too much at every n-th. n is a power of two, so that two starts which
    came to different n still have steps in common."""

    every: int = 1
    _tune_at: int = 0

    def takes(self, step: int) -> bool:
        return step % self.every == 0

    def tune(self, step: int, is_permitted: bool) -> None:
        """Called after each look; changes n at most once in sixteen looks."""
        if step < self._tune_at:
            return
        if not is_permitted:
            self.every = min(2 * self.every, MAX_EVERY)
        elif self.every > 1:
            self.every //= 2
        self._tune_at = step + 16 * self.every
