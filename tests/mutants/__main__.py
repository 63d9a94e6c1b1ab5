"""`python -m tests.mutants`: break a copy of our source, one slip at a time, and see which test turns red.

A sabotage is caught when a test is red with it and green without. Exit status: 0 all caught, 1 one survived, 2 one was
not decided (the source has moved on, the suite is red by itself, the budget is used up).
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.copies import CannotRun, Copy, Outcome, checked, copy
from tests.mutants.sabotages import SABOTAGES, Sabotage

WHOLE_SUITE = ("-m", "not torture")
CAUGHT, SURVIVED, UNDECIDED = "caught", "SURVIVED", "not decided"
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    verdict: str
    words: str
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    if asked.list:
        return _list(SABOTAGES)
    chosen = [one for one in SABOTAGES if not asked.only or one.name in asked.only]
    if unknown := set(asked.only) - {one.name for one in chosen}:
        return _refuse(f"no sabotage is called {', '.join(sorted(unknown))}; --list shows them")
    if wrong := _wrong(SABOTAGES):
        return _refuse("\n".join(wrong))
    until_s = time.monotonic() + asked.budget
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder,
        _Control(folder) as control,
    ):
        try:
            control.must_be_green([path for one in chosen for path in one.first])
        except CannotRun as error:
            return _refuse(str(error))
        for number, sabotage in enumerate(chosen, 1):
            began = time.monotonic()
            if began >= until_s:
                verdict, words = UNDECIDED, "the budget is used up"
            else:
                _say(f"{number}/{len(chosen)} {sabotage.name} ...")
                verdict, words = _judge(sabotage, Path(folder), control, asked.first_only, until_s)
            rows.append(Row(name=sabotage.name, verdict=verdict, words=words, seconds=time.monotonic() - began))
            _say(f"{number}/{len(chosen)} {sabotage.name}: {verdict}, {words} ({rows[-1].seconds:.0f} s)")
    _print(rows)
    if any(row.verdict == SURVIVED for row in rows):
        return 1
    return 2 if any(row.verdict == UNDECIDED for row in rows) else 0


class _Control:
    """The copy without a slip: made when it is asked for, kept to the end."""

    def __init__(self, folder: str) -> None:
        self._made = copy(Path(folder), None)
        self._copy: Copy | None = None

    def __enter__(self) -> _Control:
        self._copy = self._made.__enter__()
        _say(f"control: {self._copy.imported()[0]} is imported")
        return self

    def __exit__(self, *left_by: object) -> None:
        self._made.__exit__(*left_by)  # type: ignore[arg-type]

    def run(self, paths: Sequence[str]) -> Outcome:
        assert self._copy is not None
        return self._copy.pytest(paths)

    def must_be_green(self, paths: Sequence[str]) -> None:
        """Run what the sabotages name as `first`; without such a path there is nothing to run yet."""
        if not paths:
            return
        outcome = self.run(list(dict.fromkeys(paths)))
        if outcome.red is not None:
            raise CannotRun(f"red without any sabotage: {outcome.red}")
        _say(f"control: green without a sabotage ({outcome.seconds:.0f} s)")


def _judge(sabotage: Sabotage, folder: Path, control: _Control, first_only: bool, until_s: float) -> tuple[str, str]:
    """Verdict, and why."""
    if first_only and not sabotage.first:
        return UNDECIDED, "it names no tests to try first"
    try:
        with copy(folder, sabotage) as broken:
            if sabotage.first and (red := broken.pytest(sabotage.first).red) is not None:
                return CAUGHT, red  # the control run has shown that these are green without it
            if first_only:
                return SURVIVED, "by the tests it names"
            if time.monotonic() >= until_s:
                return UNDECIDED, "the budget is used up; green in the tests it names"
            if (red := broken.pytest(WHOLE_SUITE).red) is None:
                return SURVIVED, "the whole suite is green"
        if re.search(r"\.py(::|$)", red) and control.run([red]).red is not None:
            return UNDECIDED, f"red without it too: {red}"
    except CannotRun as error:
        return UNDECIDED, str(error)
    return CAUGHT, red


def _wrong(sabotages: Sequence[Sabotage]) -> list[str]:
    """Why the list cannot be used as it is."""
    names = [one.name for one in sabotages]
    wrong = [f"{name} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
    for one in sabotages:
        try:
            checked(one)
        except CannotRun as error:
            wrong.append(str(error))
    return wrong


def _list(sabotages: Sequence[Sabotage]) -> int:
    for one in sabotages:
        print(f"{one.name}  ({one.file})\n    {one.harm}")
    wrong = _wrong(sabotages)
    return _refuse("\n".join(wrong)) if wrong else 0


def _print(rows: Sequence[Row]) -> None:
    widths = [max(len(row.name) for row in rows), max(len(row.words) for row in rows)]
    print(f"{'sabotage':{widths[0]}}  {'':{len(UNDECIDED)}}  {'s':>5}  by")
    for row in rows:
        print(f"{row.name:{widths[0]}}  {row.verdict:{len(UNDECIDED)}}  {row.seconds:5.0f}  {row.words}")
    print(f"{sum(row.verdict == CAUGHT for row in rows)} of {len(rows)} caught")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; 90, 90s, 30m and 2h are")
    return float(found[1]) * _UNITS[found[2]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="names of the sabotages and what each would cost a user")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this one; may be given again")
    parser.add_argument("--budget", type=_seconds, default=float("inf"), metavar="30m", help="begin none after this")
    parser.add_argument("--first-only", action="store_true", help="only the tests that a sabotage names, not the suite")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _refuse(text: str) -> int:
    _say(f"error: {text}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
