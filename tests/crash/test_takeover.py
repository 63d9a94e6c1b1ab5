"""A writer dies, another takes over, and then the power goes: nothing the second one went on from may vanish.

What the dead one did not sync is still not durable when the next one finds it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.effects import History, Sync
from tests.crash.explore import explore
from tests.crash.proof import prove
from tests.crash.run_check import check
from tests.crash.workloads import CREATE_AGAIN, LATER_AGAIN, SAVE_AGAIN, TAKEOVERS, Workload, trace

pytestmark = pytest.mark.slow


def at(point: str) -> Workload:
    return next(workload for workload in TAKEOVERS if workload.deed[1] == point)


@pytest.mark.parametrize(
    "workload",
    [
        at("staging:file"),
        at("commit:after-rename"),
        LATER_AGAIN,
        CREATE_AGAIN[0],
        CREATE_AGAIN[7],
    ],
    ids=lambda workload: workload.name,
)
def test_a_takeover(workload: Workload, tmp_path: Path) -> None:
    prove(workload, tmp_path)


@pytest.mark.parametrize(
    ("workload", "folder"),
    [
        (SAVE_AGAIN[1], "runs/gpt/checkpoints"),  # renamed into place, not synced
        (SAVE_AGAIN[3], "runs/gpt/refs/tags"),  # the tag's ref is in place, not synced
        (CREATE_AGAIN[8], "runs/gpt"),  # it is a run, but its file's name was not synced
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_takeover_makes_durable_what_it_found(workload: Workload, folder: str, tmp_path: Path) -> None:
    history = trace(workload, tmp_path)
    without = [number for number in cleaning(history) if history.syncs[number].label == f"fsync {folder}"]
    assert without, "a takeover no longer syncs it"
    report = explore(history, check, without=without, stop_after=1)
    assert report.findings, f"leaving out the sync of {folder} was not noticed in {report.checked} states"
    print(report.findings[0])


def cleaning(history: History) -> list[int]:
    """Numbers of the syncs in one row just before the new writer says what it found."""
    row: list[int] = []
    number = last = 0
    for effects, event in history.events:
        if not isinstance(event, Sync):
            return row
        row = [*row, number] if effects == last else [number]
        number, last = number + 1, effects
    raise AssertionError("the new writer said nothing")
