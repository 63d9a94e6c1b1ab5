"""Killed at fixed and at random moments, each loop ends with the run it would have been. See also tests/torture.py."""

from __future__ import annotations

import pytest

from tests.kill.campaign import Campaign
from tests.kill.cases import Case, cases
from tests.kill.moments import Moment
from tests.kill.variants import VARIANTS, Variant

pytestmark = pytest.mark.slow
_CASES = {
    f"{variant.name}-{number}": (variant, number)
    for variant in VARIANTS.values()
    for number in range(len(cases(0, variant)))
}


def test_there_are_enough_kills(seed: int) -> None:
    """60 over the six loops, of the trainer alone and of both, at three fixed points of each loop and more."""
    planned = [case for variant in VARIANTS.values() for case in cases(seed, variant)]
    victims = [moment.victim for case in planned for moment in case.moments]
    assert victims.count("trainer") + victims.count("both") >= 60
    assert min(victims.count("trainer"), victims.count("both")) >= 25
    for variant in VARIANTS.values():
        fixed = [case for case in planned if case.variant is variant and "/fixed-" in case.name]
        assert all(case.num_kills >= 3 for case in fixed)


@pytest.mark.parametrize(("variant", "number"), _CASES.values(), ids=_CASES)
def test_killed_it_ends_as_undisturbed(campaign: Campaign, seed: int, variant: Variant, number: int) -> None:
    case = cases(seed, variant)[number]
    again = f"python -m tests.kill.replay {seed} {case.name}"
    print(f"{case}\n{again}")
    verdict = campaign.run(case)
    assert not verdict.complaints, f"{verdict}\n{case}\nagain: {again}"


@pytest.mark.parametrize(
    "words", ["handed-over@26 agent", "commit:before-rename#6 agent", "commit:before-rename#5 agent"]
)
def test_an_agent_that_dies_with_the_final_state_is_replaced(campaign: Campaign, words: str) -> None:
    """`the final state is durable` must be true, also when the agent that had it in hand is gone."""
    name = "classifier/" + "".join(letter if letter.isalnum() else "-" for letter in words)
    case = Case(name=name, variant=VARIANTS["classifier"], moments=(Moment.parse(words),))
    verdict = campaign.run(case)
    assert not verdict.complaints, f"{verdict}\n{case}"
