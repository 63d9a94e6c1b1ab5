"""The long campaign in short, a crash in the recovery from a crash included."""

from __future__ import annotations

import pytest

from tests.crash.campaign import campaign
from tests.crash.workloads import SAVE

pytestmark = pytest.mark.slow


def test_a_short_campaign() -> None:
    outcome = campaign(seed=3, max_states=120, workloads=[SAVE])
    assert outcome.findings == [], str(outcome)
    assert outcome.checked == 120
    assert outcome.rounds[SAVE.name] >= 2
