"""Agents that a test started are ended with it, however it went."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.agent.scene import Trainer

Start = Callable[[], Trainer]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Trainer] = []

    def one() -> Trainer:
        started.append(Trainer.start())
        return started[-1]

    yield one
    for trainer in started:
        trainer.stop()
