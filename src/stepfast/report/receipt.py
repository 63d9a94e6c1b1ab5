"""The receipt of a resume, in at most eight lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepfast.report.lines import count, counted, duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Where a resume came from and what it costs."""

    path: str
    source: str
    """"disk": memory and replicas come with the tiers that keep them."""
    step: int
    epoch: int
    batch: int
    finished: str | None
    computed_again: int
    """Finished steps that are computed a second time."""
    is_compared: bool = True
    """Whether they are compared with what was seen before; not when settings were changed on purpose."""
    attempt: int
    read_s: float
    read_bytes: int
    passed_over: tuple[str, ...] = ()
    differs: tuple[str, ...] = field(default=())
    """What differs from before: versions, threads, settings that were changed on purpose."""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        compared = " and compared" if self.is_compared else ""
        again = (
            f"{counted(self.computed_again, 'finished step')} will be computed again{compared}"
            if self.computed_again
            else "nothing to compute again"
        )
        rate = self.read_bytes / 2**20 / self.read_s if self.read_s > 0 else 0.0
        place = "the end" if self.finished else f"epoch {self.epoch + 1}, next batch {count(self.batch)}"
        lines = [
            f"resumed {self.path} from {self.source}, step {count(self.step)} ({place}), start number {self.attempt}",
            f"  {again}",
            f"  read and verified in {duration(self.read_s)} ({rate:,.0f} MiB/s)",
        ]
        lines += [f"  damaged, not used: {text}" for text in self.passed_over[:2]]
        if self.differs:
            shown = "; ".join(self.differs[:4]) + ("; …" if len(self.differs) > 4 else "")
            lines.append(f"  differs from before: {shown}")
        lines += [f"  {note}" for note in self.notes]
        return lines[:8]
