"""A power cut at any moment of a save: acknowledged is there, listed is whole, and each fsync is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.explore import leave_out_each, show_barriers
from tests.crash.proof import prove
from tests.crash.run_check import check
from tests.crash.workloads import CREATE, SAVE, SAVE_LATER, SAVE_NAMED, Workload

pytestmark = pytest.mark.slow

SYNCS_OF_A_SAVE = 9
"""Three files and the manifest, the staging directory, checkpoints/, refs/latest and its directory, the ledger.
The fourth file is a hard link."""


@pytest.mark.parametrize(
    ("workload", "syncs"),
    [
        pytest.param(SAVE, SYNCS_OF_A_SAVE, id="save"),
        pytest.param(SAVE_NAMED, SYNCS_OF_A_SAVE + 3, id="save with a tag: no link, and a ref more"),
    ],
)
def test_a_save_and_each_of_its_fsyncs(workload: Workload, syncs: int, tmp_path: Path) -> None:
    history, known = prove(workload, tmp_path)
    barriers = leave_out_each(history, check, known)
    print(show_barriers(barriers))
    assert [barrier.label for barrier in barriers if barrier.finding is None] == []
    assert len(barriers) == syncs


def test_a_checkpoint_that_replaces_an_earlier_one_of_its_step(tmp_path: Path) -> None:
    prove(SAVE_LATER, tmp_path)


def test_the_first_save_of_a_new_run(tmp_path: Path) -> None:
    """Where a directory is synced several times, one may cover for the other: none is spare for all of them."""
    history, known = prove(CREATE, tmp_path)
    barriers = leave_out_each(history, check, known, together=True)
    print(show_barriers(barriers))
    assert [barrier.label for barrier in barriers if barrier.finding is None] == []
