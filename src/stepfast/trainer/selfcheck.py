"""Every resume checks itself: steps computed again are compared with what progress.bin says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepfast.store.progress import NO_DIGEST, ProgressRow


def of_this_run(rows: Mapping[int, ProgressRow], events: Iterable[Mapping[str, Any]]) -> dict[int, ProgressRow]:
    """Rows of this very run. Those from before settings were changed on purpose are another run's."""
    starts = [event for event in events if event.get("event") == "resumed" and event.get("changed")]
    since = max((int(event.get("session", 0)) for event in starts), default=0)
    return {step: row for step, row in rows.items() if row.session >= since}


USUAL_CAUSES = {
    "batch": "the batch differs: a dataset, vocabulary or split that is not the same as before, "
    "or a source of batches whose state Stepfast was not given",
    "loss": "the batch is the same, what was logged is not: state that Stepfast was not given "
    "(an environment, a generator, a cache) or a kernel that is not deterministic",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first step that came out otherwise."""

    step: int
    what: str
    was: float | None
    now: float | None

    def words(self) -> str:
        values = f" (loss {self.was!r} then, {self.now!r} now)" if self.was is not None and self.now is not None else ""
        return f"step {self.step:,} is not as it was before the crash{values}: {USUAL_CAUSES[self.what]}"


@dataclass(slots=True, kw_only=True)
class SelfCheck:
    """Rows seen before the crash, from the resumed step on."""

    expected: dict[int, ProgressRow]
    num_expected: int = field(init=False)
    num_compared: int = 0
    num_batches_compared: int = 0
    num_values_compared: int = 0
    first: Difference | None = None

    def __post_init__(self) -> None:
        self.num_expected = len(self.expected)

    @property
    def is_done(self) -> bool:
        return not self.expected

    def compare(self, row: ProgressRow) -> Difference | None:
        """Take one finished step; a difference is given back once, the first time."""
        was = self.expected.pop(row.step, None)
        if was is None:
            return None
        self.num_compared += 1
        what = None
        if was.batch_digest is not None and row.batch_digest is not None:
            self.num_batches_compared += 1
            if was.batch_digest != row.batch_digest:
                what = "batch"
        if what is None and {was.values_digest, row.values_digest} != {NO_DIGEST}:
            self.num_values_compared += 1
            if was.values_digest != row.values_digest:
                what = "loss"
        if what is None or self.first is not None:
            return None
        self.first = Difference(
            step=row.step,
            what=what,
            was=was.loss,
            now=row.loss,
        )
        return self.first

    def verdict(self) -> str:
        """One line for the end of what is computed again."""
        count = f"{self.num_expected:,} step{'s' if self.num_expected != 1 else ''} computed again"
        if self.first is not None:
            return f"{count}; the first that differs is step {self.first.step:,}"
        if not self.num_batches_compared and not self.num_values_compared:
            return f"{count}; nothing was logged and no batch was readable, so nothing could be compared"
        partly = []
        if self.num_batches_compared < self.num_compared:
            partly.append(f"batches of {self.num_batches_compared:,} of them compared")
        if self.num_values_compared < self.num_compared:
            partly.append(f"logged values of {self.num_values_compared:,} of them compared")
        note = f" ({'; '.join(partly)})" if partly else ""
        return f"{count}, all equal to what was seen before the crash{note}"
