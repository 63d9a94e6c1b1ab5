"""`python tests/torture.py --budget 30m`: kills at random moments, thousands of them, going on where it stopped.

What a kill is and what must hold afterwards is in tests/kill; the crash states of the store are in tests/crash.
How far it came is kept in .torture/, by seed. Prints run / planned; exits with 1 when anything was red.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [path for path in (str(ROOT),) if path not in sys.path]  # started as a file

from tests.crash.campaign import campaign  # noqa: E402 - found by the line above
from tests.crash.trace import why_not  # noqa: E402
from tests.kill.campaign import Campaign, campaign_server  # noqa: E402
from tests.kill.cases import Case, agent_case, random_case  # noqa: E402
from tests.kill.variants import VARIANTS  # noqa: E402

PLANNED_KILLS = 2000
PLANNED_STATES = 20_000
STATES_PER_ROUND = 500
STATE = ROOT / ".torture"
_UNITS = {"s": 1, "m": 60, "h": 3600}
KILL_SHARE = 0.8
"""Part of the budget for kills; the rest is for the crash states of the store."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=seconds, default="30m", help="such as 90s, 30m, 2h")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="from the beginning")
    options = parser.parse_args(arguments)
    state_path = STATE / f"seed-{options.seed}.json"
    state: dict[str, Any] = {"cases": 0, "kills": 0, "rounds": 0, "states": 0, "red": []}
    if state_path.exists() and not options.again:
        state |= json.loads(state_path.read_text("utf-8"))
    STATE.mkdir(exist_ok=True)
    print(f"seed {options.seed}, {_progress(state)}", flush=True)
    began = time.monotonic()
    red = kill_until(began + options.budget * KILL_SHARE, options.seed, state, state_path)
    red += crash_until(began + options.budget, options.seed, state, state_path)
    print(f"seed {options.seed}, {_progress(state)}; red: {red}")
    return 1 if red else 0


def kill_until(deadline: float, seed: int, state: dict[str, Any], state_path: Path) -> int:
    """Cases in their order until the time or the plan is over; how many were red in this session."""
    red = 0
    with tempfile.TemporaryDirectory(prefix="torture-") as folder, campaign_server() as server:
        kills = Campaign(server, Path(folder))
        for case in planned(seed, state["cases"]):
            if time.monotonic() >= deadline or state["kills"] >= PLANNED_KILLS:
                break
            verdict = kills.run(case)
            kills.forget(case)
            state["cases"] += 1
            state["kills"] += case.num_kills
            if verdict.complaints:
                red += 1
                state["red"].append(case.name)
                print(
                    f"RED {case}\n    {verdict}\n    again: python -m tests.kill.replay {seed} {case.name}", flush=True
                )
            if state["cases"] % 20 == 0:
                print(_progress(state), flush=True)
            state_path.write_text(json.dumps(state), "utf-8")
    return red


def planned(seed: int, first: int) -> Iterator[Case]:
    """All loops in turn; in every eighth round the agent dies alone."""
    variants = list(VARIANTS.values())
    number = first
    while True:
        round_number, place = divmod(number, len(variants))
        if round_number % 8 == 7:
            yield agent_case(seed, variants[place], round_number)
        else:
            yield random_case(seed, variants[place], round_number)
        number += 1


def crash_until(deadline: float, seed: int, state: dict[str, Any], state_path: Path) -> int:
    """Crash states of the store in rounds, each with a seed of its own."""
    if reason := why_not():
        print(f"no crash states: {reason}")
        return 0
    red = 0
    while time.monotonic() < deadline and state["states"] < PLANNED_STATES:
        outcome = campaign(seed * 1_000_000 + state["rounds"], STATES_PER_ROUND)
        state["rounds"] += 1
        state["states"] += outcome.checked
        if outcome.findings:
            red += 1
            state["red"].append(f"crash {outcome.seed}")
            again = f"python -m tests.crash.campaign {outcome.seed} {STATES_PER_ROUND}"
            print(f"RED {outcome}\n    again: {again}", flush=True)
        state_path.write_text(json.dumps(state), "utf-8")
        print(_progress(state), flush=True)
    return red


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2] or "s"]


def _progress(state: dict[str, Any]) -> str:
    kills = f"{state['kills']:,} / {PLANNED_KILLS:,} kills in {state['cases']:,} cases"
    return f"{kills}, {state['states']:,} / {PLANNED_STATES:,} crash states, {len(state['red'])} red"


if __name__ == "__main__":
    sys.exit(main())
