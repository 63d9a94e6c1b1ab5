"""Which kills there are: fixed ones for every loop, and random ones from a seed. Pure; a seed gives the same cases."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.kill.moments import AT_BOUNDARY, AT_SAVE, ENDING, IN_AGENT, IN_STEP, IN_TAIL, TIDYING, Moment
from tests.kill.variants import VARIANTS, Variant

SLOTS = 2
"""How many saves the trainer can be ahead of the one that the agent writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run that is killed at each moment in turn and started again, then goes to its end."""

    name: str
    variant: Variant
    moments: tuple[Moment, ...]

    @property
    def num_kills(self) -> int:
        return len(self.moments)

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(map(str, self.moments))}"


def cases(seed: int, variant: Variant, num_random: int = 1) -> list[Case]:
    """The cases of `make test` for one loop."""
    found = {"fixed-trainer": fixed_trainer(variant), "fixed-both": fixed_both(variant), "agent": agent_alone(variant)}
    chosen = [Case(name=f"{variant.name}/{n}", variant=variant, moments=tuple(m)) for n, m in found.items()]
    return chosen + [random_case(seed, variant, number) for number in range(num_random)]


def case_named(seed: int, name: str) -> Case:
    """`classifier/fixed-both`, `gan/random-17`."""
    variant_name, _, which = name.partition("/")
    variant = VARIANTS[variant_name]
    if which.startswith("random-"):
        return random_case(seed, variant, int(which.removeprefix("random-")))
    if which.startswith("agent-"):
        return agent_case(seed, variant, int(which.removeprefix("agent-")))
    return next(case for case in cases(seed, variant) if case.name == name)


def fixed_trainer(variant: Variant) -> list[Moment]:
    """The trainer alone: in the first step, just after a save, when a tail is done, in the last step."""
    places = [("forward", 0), ("boundary", variant.save_steps * 2)]
    places += [("tail-done", step) for step in variant.epoch_ends if step >= variant.save_steps * 2][:1]
    places.append(("log", variant.num_steps - 1))
    places.sort(key=lambda place: place[1])
    return [Moment(place=place, step=step, victim="trainer") for place, step in places]


def fixed_both(variant: Variant) -> list[Moment]:
    """Trainer and agent: just before a save, with the save in hand, in the last tail or step."""
    places = [("after-update" if variant.name != "window-by-hand" else "log", variant.save_steps - 1)]
    places.append(("captured", variant.save_steps * 2))
    places.append(("tail-begun" if variant.epoch_ends else "log", variant.num_steps - 1))
    return [Moment(place=place, step=step, victim="both") for place, step in places]


def agent_alone(variant: Variant) -> list[Moment]:
    """Training goes on with another agent."""
    return [Moment(place="commit:after-rename", nth=1, victim="agent")]


def agent_case(seed: int, variant: Variant, number: int) -> Case:
    """The agent alone at a random moment. Saves may then be missing on the way; what the run ends with is the same."""
    rng = random.Random(f"{seed} {variant.name} agent {number}")
    save = rng.randint(1, len(variant.saves))
    moment = Moment(place=rng.choice(IN_AGENT), nth=save, victim="agent")
    return Case(name=f"{variant.name}/agent-{number}", variant=variant, moments=(moment,))


def random_case(seed: int, variant: Variant, number: int) -> Case:
    rng = random.Random(f"{seed} {variant.name} {number}")
    moments: list[Moment] = []
    least = 0
    for _ in range(rng.choice((1, 2, 2, 3, 4))):
        moment, least = _moment(rng, variant, least, is_first=not moments)
        moments.append(moment)
        if least >= variant.num_steps:
            break
    return Case(name=f"{variant.name}/random-{number}", variant=variant, moments=tuple(moments))


def _moment(rng: random.Random, variant: Variant, least: int, *, is_first: bool) -> tuple[Moment, int]:
    """A moment that will surely come in a run that goes on at step `least` or before it, and the same for the next."""
    over = variant.num_steps
    victim = rng.choice(("trainer", "both"))
    kind = rng.random()
    if kind < 0.3:
        return _in_agent(rng, variant, victim, is_first=is_first)
    if kind < 0.36:
        return Moment(place=rng.choice(ENDING), step=over, victim=victim), over
    step = rng.randrange(least, over)
    saves = [save for save in variant.saves if save > least]
    tails = [end for end in variant.epoch_ends if end >= least]
    if kind < 0.5 and saves:
        step = rng.choice(saves)
        return Moment(place=rng.choice(AT_SAVE), step=step, victim=victim), step
    if kind < 0.65 and tails:
        step = rng.choice(tails)
        return Moment(place=rng.choice(IN_TAIL), step=step, victim=victim), step
    places = [*IN_STEP, *AT_BOUNDARY]
    if variant.name == "window-by-hand":  # an update in every eighth step only
        places = [place for place in places if not place.endswith("update")]
    if variant.epoch_steps is None:  # nothing is fetched for it
        places.remove("fetch")
    return Moment(place=rng.choice(places), step=step, victim=victim), step


def _in_agent(rng: random.Random, variant: Variant, victim: str, *, is_first: bool) -> tuple[Moment, int]:
    num_saves = len(variant.saves)
    save = rng.randint(1, num_saves) if is_first else 1
    if is_first and num_saves > 3 and rng.random() < 0.2:
        nth = rng.randint(1, num_saves - 3)  # the newest three stay
        return Moment(place=rng.choice(TIDYING), nth=nth, victim=victim), _after_save(variant, nth + 3)
    place = rng.choice(IN_AGENT)
    nth = save
    if place == "staging:file":  # at least four a save
        nth = 4 * (save - 1) + rng.randint(1, 4)
    after = _after_save(variant, save) if is_first else variant.num_steps
    return Moment(place=place, nth=nth, victim=victim), after


def _after_save(variant: Variant, nth: int) -> int:
    """A step not before which a run goes on whose agent was at its nth save: what waits in slots may become durable."""
    later = nth + SLOTS
    return variant.saves[later] if later < len(variant.saves) else variant.num_steps
