"""Long, seeded runs: more random crash states of every deed, and crashes in the recovery from a crash.

    python -m tests.crash.campaign [SEED [STATES]]

Equal seeds choose equal moments and fates as long as the writer's calls are equal.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.effects import History
from tests.crash.explore import Finding, Known, build, explore
from tests.crash.run_check import check
from tests.crash.states import DAMAGE, READINGS, Point, Tree, points, tree_after
from tests.crash.trace import why_not
from tests.crash.workloads import ALL, Workload, trace, trace_deed

STATES_PER_ROUND = 400
IDLE_ROUNDS = 50
"""Give up when so many rounds in a row find no new state."""


@dataclass(slots=True)
class Outcome:
    seed: int
    planned: int
    checked: int = 0
    trees: set[bytes] = field(default_factory=set)
    rounds: dict[str, int] = field(default_factory=dict)
    findings: list[tuple[str, Finding]] = field(default_factory=list)

    def __str__(self) -> str:
        harms = "".join(f"\n{where}: {finding}" for where, finding in self.findings[:5])
        counts = f"{self.checked} of {self.planned} crash states, {len(self.trees)} trees"
        rounds = f"{sum(self.rounds.values())} rounds, {len(self.findings)} bad"
        return f"seed {self.seed}: {counts}, {rounds}{harms}"


def campaign(seed: int, max_states: int, workloads: Sequence[Workload] = ALL) -> Outcome:
    """Explore until `max_states` were checked. Every second round is a crash in the recovery from a crash."""
    if reason := why_not():
        raise RuntimeError(f"no crash states can be built: {reason}")
    rng, outcome = random.Random(seed), Outcome(seed=seed, planned=max_states)
    known: dict[str, Known] = {}
    histories: dict[str, History] = {}
    idle = 0
    while outcome.checked < max_states and idle < IDLE_ROUNDS:
        workload = rng.choice(workloads)
        if workload.name not in histories:
            with folder() as where:
                histories[workload.name] = trace(workload, where)
        history, name = histories[workload.name], workload.name
        promised: tuple[str, ...] = ()
        seen = known.setdefault(name, set())
        if sum(outcome.rounds.values()) % 2:
            tree, point = any_state(history, rng)
            name, promised, seen = f"{name}, crash {point.label}, go-on", point.promises, set()
            with folder() as where:
                build(tree, where / "root")
                history = trace_deed(("go-on",), where / "root", where / "trace")
        report = explore(
            history,
            check,
            promised=promised,
            known=seen,
            limit=32,
            extra=rng.choice((8, 64, 256)),
            seed=rng.getrandbits(64),
            max_states=min(STATES_PER_ROUND, max_states - outcome.checked),
        )
        idle = 0 if report.checked else idle + 1
        outcome.checked += report.checked
        outcome.trees |= report.trees
        outcome.rounds[workload.name] = outcome.rounds.get(workload.name, 0) + 1
        outcome.findings += [(name, finding) for finding in report.findings]
    return outcome


def any_state(history: History, rng: random.Random) -> tuple[Tree, Point]:
    """One crash state. Under `ordered` only a prefix of the names is durable."""
    reading = rng.choice(READINGS)
    point = rng.choice(list(points(history, reading)))
    pending, share = point.pending(), rng.random()
    names = [number for number in pending if history.effects[number].names]
    gone = set(names[rng.randint(0, len(names)) :]) if reading == "ordered" else set()
    free = [number for number in pending if reading == "posix" or not history.effects[number].names]
    gone |= {number for number in free if rng.random() > share}
    fates = {number: "whole" if rng.random() < 0.8 else rng.choice(DAMAGE) for number in pending if number not in gone}
    return tree_after(history, point, fates), point


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        yield Path(name)


if __name__ == "__main__":
    result = campaign(int(sys.argv[1]) if len(sys.argv) > 1 else 0, int(sys.argv[2]) if len(sys.argv) > 2 else 2000)
    print(result)
    sys.exit(bool(result.findings))
