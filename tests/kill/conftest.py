"""One fork server and one campaign for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.kill.campaign import Campaign, campaign_server


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    with campaign_server() as server:
        yield Campaign(server, tmp_path_factory.mktemp("kill"))


@pytest.fixture(scope="session")
def seed() -> int:
    """A fixed one, so that a red test is red again; KILL_SEED=7 tries other moments, torture tries thousands."""
    return int(os.environ.get("KILL_SEED", "1"))
