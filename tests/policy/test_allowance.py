"""How much time looking may take, and every how many steps it is done."""

from __future__ import annotations

from stepfast.policy.allowance import MAX_EVERY, Allowance, Thinning


def test_an_allowance_is_a_share_of_the_time_and_something_to_begin_with() -> None:
    allowance = Allowance(share=0.01, first_s=0.1)
    assert allowance.permits(elapsed_s=0, num_steps=0)
    allowance.spent_s = 0.2
    assert not allowance.permits(elapsed_s=5, num_steps=1)
    assert allowance.permits(elapsed_s=10.1, num_steps=1), "time that passes pays it back"


def test_an_allowance_for_every_step() -> None:
    allowance = Allowance(share=0.0, first_s=0.0, step_s=0.001, spent_s=0.01)
    assert not allowance.permits(elapsed_s=100, num_steps=9)
    assert allowance.permits(elapsed_s=0, num_steps=11)


def looked(thinning: Thinning, num_steps: int, *, permitted: bool) -> list[int]:
    taken = []
    for step in range(num_steps):
        if thinning.takes(step):
            taken.append(step)
            thinning.tune(step, permitted)
    return taken


def test_every_step_where_it_is_permitted() -> None:
    assert looked(Thinning(), 100, permitted=True) == list(range(100))


def test_thinned_to_powers_of_two_with_a_limit() -> None:
    thinning = Thinning()
    looked(thinning, 10 * 16 * MAX_EVERY, permitted=False)
    assert thinning.every == MAX_EVERY
    looked(thinning, 16 * MAX_EVERY * 40, permitted=True)
    assert thinning.every == 1, "and back again when time allows"


def test_two_starts_have_steps_in_common() -> None:
    slow = set(looked(Thinning(), 4000, permitted=False)[-20:])
    assert slow
    assert slow <= set(looked(Thinning(), 4000, permitted=True))
