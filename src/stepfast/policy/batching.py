"""How samples are put into batches: what must not change in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Mapping

from stepfast.core.errors import StateMismatch


def check_batching(stored: Mapping[str, object], now: Mapping[str, object], epoch: int, batch: int) -> None:
    """Raise StateMismatch where a batch's number does not name the same place as when the epoch began."""
    for name in sorted(stored.keys() | now.keys()):
        was, value = stored.get(name), now.get(name)
        if was != value:
            raise StateMismatch(
                f"data.{name} was {was} when epoch {epoch + 1} began and is {value} now, "
                f"and the checkpoint is at batch {batch} of that epoch",
                hint="this change is possible at an epoch's start only: go on with the value it had to the end "
                "of the epoch, or resume from a checkpoint at an epoch's start",
            )
