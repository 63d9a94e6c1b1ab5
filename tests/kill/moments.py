"""The moments at which a kill can happen, as words that one environment variable carries into a child.

A moment is a place and who dies there: `after-update@12 both`, `commit:after-rename#2 trainer`. Not here: making it
happen, which is faults.py in the trainer and agent_site/sitecustomize.py in the agent.
"""

from __future__ import annotations

from dataclasses import dataclass

MOMENT = "KILL_MOMENT"
"""Environment variable with the words of a moment; read by the harness alone."""

FIRED = "KILL_FIRED"
"""Environment variable with the file that a fault writes before it kills: the proof that it fired."""

IN_STEP = ("forward", "backward", "before-update", "after-update", "log")
"""Places in the trainer's step, in their order."""

AT_BOUNDARY = ("fetch", "boundary")
"""Before the first batch of a step is fetched; after a boundary was handled, a save that is due included."""

AT_SAVE = ("captured", "handed-over")
"""The slot is filled and not handed to the agent; handed over."""

IN_TAIL = ("tail-begun", "tail-done")
"""The epoch's last batch was used up; the next epoch (or the end) is asked for."""

ENDING = ("complete", "closing")
"""The final state was handed over, nobody waited for the disk yet; all is durable, the agent is told to end."""

IN_AGENT = (
    "staging:begun",
    "staging:file",
    "staging:manifest",
    "staging:synced",
    "commit:before-rename",
    "commit:after-rename",
    "commit:done",
)

TIDYING = ("tidy:renamed", "tidy:synced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """`step` is the step that the trainer is in; in the agent `nth` counts how often the place was passed."""

    place: str
    victim: str
    step: int = 0
    nth: int = 1

    @property
    def is_in_agent(self) -> bool:
        return ":" in self.place

    def __str__(self) -> str:
        where = f"#{self.nth}" if self.is_in_agent else f"@{self.step}"
        return f"{self.place}{where} {self.victim}"

    @classmethod
    def parse(cls, words: str) -> Moment:
        where, _, victim = words.partition(" ")
        assert victim in ("trainer", "both", "agent"), f"{words!r} does not say who dies"
        if "#" in where:
            place, _, number = where.partition("#")
            return cls(place=place, victim=victim, nth=int(number))
        place, _, number = where.partition("@")
        return cls(place=place, victim=victim, step=int(number))
