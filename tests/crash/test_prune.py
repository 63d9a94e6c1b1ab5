"""A power cut at any moment of a prune: a checkpoint is there as a whole or not listed, what is kept stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.explore import leave_out_each, show_barriers
from tests.crash.proof import prove
from tests.crash.run_check import check
from tests.crash.workloads import PRUNE

pytestmark = pytest.mark.slow


def test_a_prune_and_its_fsync(tmp_path: Path) -> None:
    history, known = prove(PRUNE, tmp_path)
    barriers = leave_out_each(history, check, known)
    print(show_barriers(barriers))
    assert [barrier.label for barrier in barriers if barrier.finding is None] == []
    assert len(barriers) == 1  # between renaming and deleting
