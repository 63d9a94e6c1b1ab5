"""Cursor arithmetic: which batch comes next, how long its window is, when the run is complete. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stepfast.core.words import Cursor


@dataclass(slots=True, kw_only=True)
class Position:
    """Where the loop is. `step` counts finished steps; `handed` counts this epoch's batches that were given out."""

    epoch_length: int | None
    """Batches in an epoch; None where only the end tells."""
    epochs: int | None
    steps: int | None
    accumulate: int
    step: int = 0
    epoch: int = 0
    handed: int = 0
    in_step: bool = False
    """A batch of step `step` was given out, and the boundary after it was not reached."""

    def cursor(self) -> Cursor:
        return Cursor(step=self.step, epoch=self.epoch, batch=self.handed)

    @property
    def at_window_start(self) -> bool:
        return self.handed % self.accumulate == 0

    @property
    def window_size(self) -> int:
        """Batches in the window of the batch in hand (or of the next one)."""
        index = max(self.handed - 1, 0) if self.in_step else self.handed
        first = index - index % self.accumulate
        if self.epoch_length is None:
            return self.accumulate
        return min(self.accumulate, self.epoch_length - first)

    @property
    def window_end(self) -> bool:
        """Whether the batch in hand is the last of its window."""
        return self.handed % self.accumulate == 0 or self.handed == self.epoch_length

    @property
    def epoch_exhausted(self) -> bool:
        return self.epoch_length is not None and self.handed >= self.epoch_length

    @property
    def is_last_step(self) -> bool:
        """Whether the step in hand is the last that `steps=` allows."""
        return self.steps is not None and self.step + 1 >= self.steps

    @property
    def is_complete(self) -> bool:
        if self.steps is not None and self.step >= self.steps:
            return True
        return self.epochs is not None and self.epoch >= self.epochs

    @property
    def steps_per_epoch(self) -> int | None:
        return None if self.epoch_length is None else -(-self.epoch_length // self.accumulate)

    @property
    def total_steps(self) -> int | None:
        per_epoch = self.steps_per_epoch
        by_epochs = None if self.epochs is None or per_epoch is None else self.epochs * per_epoch
        bounds = [bound for bound in (by_epochs, self.steps) if bound is not None]
        return min(bounds) if bounds else None

    def hand(self) -> None:
        self.handed += 1
        self.in_step = True

    def finish_step(self) -> None:
        self.step += 1
        self.in_step = False

    def next_epoch(self) -> None:
        self.epoch += 1
        self.handed = 0
        self.in_step = False
