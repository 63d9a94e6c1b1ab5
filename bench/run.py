"""All measurements: shuffled rounds, a fresh process each, one table. `python -m bench.run [CASE ...]`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.cases import CASES, ROWS, Case
from bench.judge import middle, null_spread, verdict

OUT = Path(__file__).resolve().parent.parent / "out" / "bench"
BUDGET_S = 570.0
DISTURBED = 0.15
"""Where others took more of the machine than this, a value is measured again while there is time."""

NOTES = """
ours: median of all processes. null: ours against ours, the worst pair;
a distance to the bar within it is no difference.
others: share of the machine that other processes took, in the worst process.
torch.save leaves out: RNGs, cursor, history, waiting gradients, strides, digests, hard links, sync of the directory."""

Raw = dict[str, Any]


def main() -> int:
    wanted = set(sys.argv[1:]) or {case.name for case in CASES}
    if unknown := wanted - {case.name for case in CASES}:
        print(f"error: no case {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    OUT.mkdir(parents=True, exist_ok=True)
    seed = random.SystemRandom().randrange(1 << 31)
    rng = random.Random(seed)
    began = time.monotonic()
    raw: list[Raw] = []
    kept = OUT / time.strftime("%Y%m%d-%H%M%S.json", time.gmtime())
    with tempfile.TemporaryDirectory(dir=OUT, prefix="work-") as work:
        for case, number, twin in _order(wanted, rng):
            if number > 0 and not _has_time(case, began, raw):
                print(f"{case.name:6} round {number + 1} {'ab'[twin]}  left out: the time is up", file=sys.stderr)
                continue
            _once(case, number, twin, Path(work), rng, raw)
            _keep(kept, seed, raw)
        for again in _disturbed(raw):
            if not _has_time(again["case"], began, raw):
                continue
            _once(again["case"], again["round"], again["twin"], Path(work), rng, raw)
            _keep(kept, seed, raw)
    _print_table(raw, wanted)
    print(f"\nseed {seed}, {time.monotonic() - began:.0f} s, raw values in {kept.relative_to(OUT.parent.parent)}")
    return 0 if all(one["found"] is not None for one in raw) else 1


def _order(wanted: set[str], rng: random.Random) -> list[tuple[Case, int, int]]:
    """Rounds in turn, the processes of a round shuffled, so that drift and order average out."""
    order: list[tuple[Case, int, int]] = []
    for number in range(max(case.rounds for case in CASES)):
        members = [
            (case, number, twin)
            for case in CASES
            if case.name in wanted and number < case.rounds
            for twin in range(2 if case.twins else 1)
        ]
        rng.shuffle(members)
        order += members
    return order


def _keep(path: Path, seed: int, raw: list[Raw]) -> None:
    """After each process, so that nothing is lost with an interruption."""
    values = [{**one, "case": one["case"].name} for one in raw]
    path.write_text(json.dumps({"seed": seed, "cpus": os.cpu_count(), "raw": values}, indent=1), encoding="utf-8")


def _has_time(case: Case, began: float, raw: list[Raw]) -> bool:
    longest = max((one["took_s"] for one in raw if one["case"] is case), default=0.0)
    return time.monotonic() - began + 1.2 * longest <= BUDGET_S


def _once(case: Case, number: int, twin: int, work: Path, rng: random.Random, raw: list[Raw]) -> None:
    started = time.monotonic()
    found, why = _child(case, work, rng.randrange(1 << 31))
    took = time.monotonic() - started
    raw.append({"case": case, "round": number, "twin": twin, "took_s": took, "found": found, "why": why})
    others = f"others {found['others'][0]:4.0%}" if found else f"failed: {why}"
    print(f"{case.name:6} round {number + 1} {'ab'[twin]}  {took:5.1f} s  {others}", file=sys.stderr, flush=True)


def _child(case: Case, work: Path, seed: int) -> tuple[Raw | None, str]:
    """Results go to files: a process left over would hold a pipe open. The whole group is ended on a time-out."""
    result = work / "result.json"
    result.unlink(missing_ok=True)
    with open(work / "log.txt", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.child", case.name, str(work), str(result), str(seed)],
            cwd=OUT.parent.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            status = process.wait(case.deadline_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, KeyboardInterrupt):
                raise
            return None, f"not done within {case.deadline_s:.0f} s"
    if status != 0:
        last = (work / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return None, last[-1] if last else f"exit status {status}"
    return json.loads(result.read_text(encoding="utf-8")), ""


def _disturbed(raw: list[Raw]) -> list[Raw]:
    """Most disturbed first; chosen by what others did, never by what came out."""
    shaky = [one for one in raw if one["found"] and one["found"]["others"][0] > DISTURBED]
    return sorted(shaky, key=lambda one: -one["found"]["others"][0])


def _quietest(raw: list[Raw], case: str) -> dict[tuple[int, int], Raw]:
    chosen: dict[tuple[int, int], Raw] = {}
    for one in raw:
        if one["case"].name != case or one["found"] is None:
            continue
        place = (one["round"], one["twin"])
        if place not in chosen or one["found"]["others"] < chosen[place]["others"]:
            chosen[place] = one["found"]
    return chosen


def _print_table(raw: list[Raw], wanted: set[str]) -> None:
    print(f"\n{'measured':72} {'bar':>8} {'ours':>9} {'range':>17} {'null':>6} {'others':>6}  verdict")
    for row in ROWS:
        if row.case not in wanted:
            continue
        chosen = _quietest(raw, row.case)
        values = [found[row.key][0] for found in chosen.values() if row.key in found]
        if not values:
            print(f"{row.title:72} {_shown(row.bar, row.unit):>8} {'not there':>9}")
            continue
        spread = null_spread(_pairs(chosen, row.key))
        ours = middle(values)
        extent = f"{_shown(min(values), row.unit)} - {_shown(max(values), row.unit)}"
        others = max(found["others"][0] for found in chosen.values())
        judged = "" if row.bar is None else verdict(ours, row.bar, spread)
        if judged and others > DISTURBED:
            judged += " (disturbed)"
        print(
            f"{row.title:72} {_shown(row.bar, row.unit):>8} {_shown(ours, row.unit):>9} {extent:>17}"
            f" {spread:6.1%} {others:6.0%}  {judged}"
        )
    print(NOTES)


def _pairs(chosen: dict[tuple[int, int], Raw], key: str) -> list[tuple[float, float]]:
    pairs = []
    for (number, twin), found in chosen.items():
        if f"{key}_null" in found:
            a, b, c, d = found[f"{key}_null"]
            pairs += [(a, b), (c, d)]
        elif twin == 0 and key in found and key in chosen.get((number, 1), {}):
            pairs.append((found[key][0], chosen[number, 1][key][0]))
    return pairs


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.3f}x" if unit == "x" else f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


if __name__ == "__main__":
    sys.exit(main())
