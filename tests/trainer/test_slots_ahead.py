"""Slots are made while the loop goes on: the first save finds them, and no room is told by the save alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepfast.store.run_directory import RunDirectory
from stepfast.trainer.saver import Saver
from tests.trainer import scene
from tests.trainer.conftest import Said


def slots_before_saves(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slots there were when each save began."""
    found: list[int] = []
    save = Saver.save

    def watched(self: Saver, request: Any) -> None:
        self.agent.take_slots()
        found.append(len(self.agent.slots))
        save(self, request)

    monkeypatch.setattr(Saver, "save", watched)
    scene.finish(path)
    return found


def test_the_first_save_finds_its_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = slots_before_saves(tmp_path / "run", monkeypatch)
    assert found
    assert set(found) == {2}
    assert RunDirectory.open(tmp_path / "run").steps()[-1] == scene.STEPS


def test_no_room_ahead_is_no_failure_before_a_save_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setattr("stepfast.trainer.saver.SMALL_ROOM_BYTES", 1 << 50)  # only what is asked for ahead
    found = slots_before_saves(tmp_path / "run", monkeypatch)
    assert found[0] == 0
    assert set(found[1:]) == {2}
    assert said.nothing("failed")
    assert RunDirectory.open(tmp_path / "run").steps()[-1] == scene.STEPS


def test_leaving_before_any_save_waits_for_what_was_asked(tmp_path: Path) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run", save_steps=0)
    for number, batch in enumerate(run):
        scene.do_step(run, script, batch)
        if number == 2:
            run.close()
            break
