"""The loops as the campaign runs them: how long they are and where they save."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LOOPS = Path(__file__).parents[1] / "loops"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`epoch_steps` is None for a loop without epochs. `is_source_kept`: the batches are those of the script alone."""

    name: str
    script: str
    args: tuple[str, ...] = ()
    num_steps: int
    epoch_steps: int | None
    save_steps: int
    is_source_kept: bool = True

    @property
    def path(self) -> Path:
        return LOOPS / self.script

    @property
    def before_path(self) -> Path:
        """The same script before Stepfast."""
        return self.path.with_name(f"{self.path.stem}_before.py")

    @property
    def epoch_ends(self) -> tuple[int, ...]:
        """The last step of each epoch."""
        if self.epoch_steps is None:
            return ()
        return tuple(range(self.epoch_steps - 1, self.num_steps, self.epoch_steps))

    @property
    def saves(self) -> tuple[int, ...]:
        """The boundaries at which an undisturbed run saves."""
        every = range(self.save_steps, self.num_steps, self.save_steps)
        return tuple(sorted({*every, *(step + 1 for step in self.epoch_ends), self.num_steps}))


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(name="classifier", script="classifier.py", num_steps=26, epoch_steps=13, save_steps=5),
        Variant(
            name="workers", script="augmented.py", args=("2",), num_steps=24, epoch_steps=12, save_steps=5,
            is_source_kept=False,
        ),
        Variant(name="no-workers", script="augmented.py", args=("0",), num_steps=24, epoch_steps=12, save_steps=5),
        Variant(name="window-by-hand", script="window_by_hand.py", num_steps=44, epoch_steps=22, save_steps=5),
        Variant(name="accumulate", script="window_accumulate.py", num_steps=12, epoch_steps=3, save_steps=2),
        Variant(name="no-loader", script="no_loader.py", num_steps=30, epoch_steps=None, save_steps=7),
        Variant(name="gan", script="gan.py", num_steps=24, epoch_steps=12, save_steps=6),
        Variant(name="bfloat16", script="bfloat16.py", num_steps=56, epoch_steps=8, save_steps=5),
    )
}  # fmt: skip
