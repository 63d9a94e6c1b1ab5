"""Everything here needs a working strace; without one the tests are skipped, with the reason."""

from __future__ import annotations

import pytest

from tests.crash.trace import why_not


@pytest.fixture(autouse=True, scope="session")
def strace() -> None:
    if reason := why_not():
        pytest.skip(f"no crash states can be built: {reason}")
