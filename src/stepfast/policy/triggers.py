"""When to save: triggers that compose with `|`, each with its own clock. `now` is always a parameter."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepfast.core.errors import UsageError

EVENTS = ("signal", "exception", "request")


class Trigger:
    """Base of the triggers; `a | b` fires when either does."""

    def __or__(self, other: object) -> AnyOf:
        if not isinstance(other, Trigger):
            return NotImplemented
        return AnyOf(parts=(*self._parts(), *other._parts()))

    def _parts(self) -> tuple[Trigger, ...]:
        return (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Every(Trigger):
    """Every so many steps, or every so many seconds.

    `Every(steps=500)` saves at steps 500, 1000, …; `Every(seconds=600)` ten minutes after the last save it caused.
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.seconds is None):
            raise UsageError("Every() takes either steps= or seconds=", hint="Every(steps=500) or Every(seconds=600)")
        if self.steps is not None and (type(self.steps) is not int or self.steps < 1):
            raise UsageError(f"Every(steps={self.steps!r}): a whole number from 1 is needed", hint="Every(steps=500)")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"Every(seconds={self.seconds!r}): a positive number is needed", hint="Every(seconds=600)")


@dataclass(frozen=True, slots=True)
class EpochEnd(Trigger):
    """At the end of every epoch, after its tail."""


@dataclass(frozen=True, slots=True, init=False)
class On(Trigger):
    """On events: "signal" (SIGTERM, SIGUSR1, Ctrl-C), "exception", "request" (`stepfast save RUN`)."""

    events: tuple[str, ...]

    def __init__(self, *events: str) -> None:
        unknown = [event for event in events if event not in EVENTS]
        if unknown or not events:
            raise UsageError(
                f"On({', '.join(map(repr, events))}): known events are {', '.join(EVENTS)}",
                hint='On("signal", "exception", "request")',
            )
        object.__setattr__(self, "events", events)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyOf(Trigger):
    """Several triggers; made by `|`."""

    parts: tuple[Trigger, ...]

    def _parts(self) -> tuple[Trigger, ...]:
        return self.parts


DEFAULT = Every(seconds=600) | EpochEnd() | On("signal", "exception", "request")


def with_save_steps(save_steps: int | None) -> Trigger:
    """The default triggers with the first term replaced (`save_steps=500`) or dropped (`save_steps=0`)."""
    if save_steps is None:
        return DEFAULT
    rest = EpochEnd() | On("signal", "exception", "request")
    if save_steps == 0:
        return rest
    return Every(steps=save_steps) | rest


@dataclass(slots=True, kw_only=True)
class Clocks:
    """What the triggers of one run have seen: the moment of the last save by time, for each of them."""

    trigger: Trigger
    started: float
    _last: dict[int, float] = field(default_factory=dict)

    def due(self, *, step: int, epoch_ended: bool, now: float) -> list[str]:
        """Reasons in words to save at this boundary; empty for none."""
        reasons = []
        for number, part in enumerate(self.trigger._parts()):
            if isinstance(part, Every) and part.steps is not None:
                if step > 0 and step % part.steps == 0:
                    reasons.append(f"every {part.steps:,} steps")
            elif isinstance(part, Every) and part.seconds is not None:
                if now - self._last.get(number, self.started) >= part.seconds:
                    self._last[number] = now
                    reasons.append(f"every {part.seconds:g} s")
            elif isinstance(part, EpochEnd) and epoch_ended:
                reasons.append("epoch end")
        return reasons

    def listens_to(self, event: str) -> bool:
        return any(isinstance(part, On) and event in part.events for part in self.trigger._parts())
