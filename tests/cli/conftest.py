"""A finished run that tests copy, and the command as a function."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepfast.cli.main import main
from tests.forkserver import Child, ForkServer

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command gave back."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found = json.loads(self.out)
        assert found["version"] == 1
        assert isinstance(found, dict)
        return found


Command = Callable[..., Answer]


@pytest.fixture
def stepfast(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process."""

    def command(*arguments: str | Path) -> Answer:
        capsys.readouterr()
        status = main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        return Answer(status=status, out=out, err=err)

    return command


@pytest.fixture(scope="session")
def finished_once(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    child = fork_server.start_script(SCRIPTS / "train.py", [str(path), "2"])
    assert child.wait(50) == 0, child.stderr
    return path


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    """A run of 20 steps in two epochs; it kept 12, 16, 20, and 6 with the tag `early`."""
    return Path(shutil.copytree(finished_once, tmp_path / "run"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    """A run that trains right now."""

    path: Path
    child: Child


@pytest.fixture
def living(fork_server: ForkServer, tmp_path: Path) -> Iterator[Living]:
    path = tmp_path / "run"
    child = fork_server.start_script(SCRIPTS / "endless.py", [str(path)])
    try:
        child.wait_for_output("in the loop")
        yield Living(path=path, child=child)
    finally:
        child.kill()
        child.wait(20)
