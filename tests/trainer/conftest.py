"""Runs in this process: what they say is in `said`, numbers of the undisturbed script in `undisturbed`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator

import pytest
import torch

from tests.trainer import scene
from tests.trainer.scene import Final


class Said:
    """The lines that Runs of a test have said so far."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.name == "stepfast"]

    def with_words(self, *words: str) -> list[str]:
        return [line for line in self.lines if all(word in line for word in words)]

    def one(self, *words: str) -> str:
        found = self.with_words(*words)
        assert len(found) == 1, f"{len(found)} lines with {words}; said: {self.lines}"
        return found[0]

    def nothing(self, *words: str) -> bool:
        return not self.with_words(*words)

    def forget(self) -> None:
        self._caplog.clear()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Said]:
    with caplog.at_level(logging.INFO, logger="stepfast"):
        yield Said(caplog)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        for run in scene.started:
            run.close()  # else one failure is told as three: the test that passes has to leave nothing by itself
    return report


@pytest.fixture(autouse=True)
def _runs_of_its_own() -> Iterator[None]:
    scene.started.clear()
    yield
    scene.started.clear()


@pytest.fixture(autouse=True)
def _environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STEPFAST_RESUME", "STEPFAST_CHANGE", "STEPFAST_OFF"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


_finals: dict[object, Final] = {}


@pytest.fixture
def undisturbed() -> Callable[..., Final]:
    """What the script ends with without Stepfast's keeping, by its loop; computed once."""

    def of(loop: Callable[..., object] = scene.train) -> Final:
        if loop not in _finals:
            _finals[loop] = scene.finish(None, loop)
        return _finals[loop]

    return of
