"""Settings that were changed between two starts: both values and both ways on are named, and the way on works."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stepfast import Every, Options, Retention
from stepfast.core.errors import SettingChanged, StateMismatch, UsageError
from tests.trainer import scene
from tests.trainer.conftest import Said
from tests.trainer.scene import Run, Script, build

pytestmark = pytest.mark.slow

Start = tuple[Callable[[], Script], dict[str, Any]]


def step_schedule(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.9)


CHANGED: dict[str, tuple[Start, list[str]]] = {
    "learning rate": ((lambda: build(lr=0.01), {}), ["optimizer.lr=0.05", "has 0.01"]),
    "batch size": ((lambda: build(batch_size=5), {}), ["data.batch_size=4", "has 5"]),
    "dataset length": ((lambda: build(samples=23), {}), ["data.dataset_length=19", "has 23"]),
    "seed": ((build, {"seed": 5}), ["seed=2", "has 5"]),
    "schedule": ((lambda: build(gamma=0.5), {}), ["scheduler.gamma=0.9", "has 0.5"]),
    "schedule class": ((lambda: build(schedule=step_schedule), {}), ["scheduler.class=ExponentialLR", "has StepLR"]),
    "accumulate": ((build, {"accumulate": 2}), ["accumulate=1", "has 2"]),
    "hyperparameters": (
        (build, {"options": Options(hyperparameters={"width": 6})}),
        ["hyperparameters.width=5", "has 6"],
    ),
}
NOT_IN_AN_EPOCH = {"batch size", "dataset length"}
"""What the batches already done of an epoch cannot be counted in."""
FIRST = {"seed": 2, "options": Options(hyperparameters={"width": 5})}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("started") / "run"
    scene.crash_at(path, 4, **FIRST)
    before = scene.files(path)
    yield path
    assert scene.files(path) == before, "a refused start writes nothing"


@pytest.mark.parametrize("name", CHANGED)
def test_changed_setting_names_both_values_and_both_ways_on(
    started: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (make, arguments), words = CHANGED[name]
    script = make()
    weights = {key: scene.bits(tensor) for key, tensor in script.model.state_dict().items()}
    with pytest.raises(SettingChanged) as raised:
        script.run(started, **(FIRST | arguments))
    assert {key: scene.bits(tensor) for key, tensor in script.model.state_dict().items()} == weights
    assert not script.optimizer.state
    for word in words:
        assert word in raised.value.message
    hint = raised.value.hint
    assert re.search(r"start over: STEPFAST_RESUME=fresh python \S+$", hint)
    (change,) = re.findall(r"go on with the new value: STEPFAST_CHANGE=(\S+) python", hint)
    assert "Traceback" not in str(raised.value)

    # The line from the hint, as it stands, goes on.
    shutil.copytree(started, tmp_path / "run")
    monkeypatch.setenv("STEPFAST_CHANGE", change)
    script = make()
    run = script.run(tmp_path / "run", **(FIRST | arguments))
    assert run.step == 3
    assert any("from step 3 on this is another run" in note for note in run.receipt.notes)
    said.one("from step 3 on this is another run")
    said.one("differs from before:", "before", "now")
    for key in change.split(","):
        assert any(key in text for text in run.receipt.differs) or len(run.receipt.differs) >= 4
    said.one("1 finished step will be computed again")
    assert said.nothing("and compared")
    if name in NOT_IN_AN_EPOCH:
        with pytest.raises(StateMismatch, match="when epoch 1 began") as refused:
            _in_force(name, run, script)
        assert "at an epoch's start only" in refused.value.hint
        return
    _in_force(name, run, script)
    assert said.nothing("not as it was before"), "another run is not blamed for being another"


def _in_force(name: str, run: Run, script: Script) -> None:
    """Go on, and see that the new value counts."""
    rates: list[float] = []
    windows: list[int] = []
    epochs: list[int] = []
    for epoch in run.epochs():
        script.model.train()
        for batch in epoch:
            rates.append(script.optimizer.param_groups[0]["lr"])
            windows.append(run.window_size)
            epochs.append(run.epoch)
            scene.do_step(run, script, batch)
    if name == "learning rate":
        assert rates == pytest.approx([0.01 * 0.9**step for step in range(3, 10)])
    elif name == "schedule":
        assert rates == pytest.approx([0.05 * 0.9**3 * 0.5**step for step in range(7)])
    elif name == "schedule class":
        assert rates[0] == pytest.approx(0.05 * 0.9**3)
        assert rates[-1] < rates[0]
        assert len(set(rates)) == 4
    elif name == "accumulate":
        assert windows[-5:] == [2, 2, 2, 2, 1]
    elif name == "seed":
        assert run.history["loss"][3:] != scene_losses()[3:]
    else:
        assert run.step == 10


_losses: list[float] = []


def scene_losses() -> list[float]:
    """Losses of the run that was started with the first settings, undisturbed."""
    if not _losses:
        script = build()
        run = script.run(None, **FIRST)
        for epoch in run.epochs():
            script.model.train()
            for batch in epoch:
                scene.do_step(run, script, batch)
        _losses.extend(run.history["loss"])
    return _losses


def test_several_changes_are_counted_and_named(started: Path) -> None:
    with pytest.raises(SettingChanged) as raised:
        build(lr=0.01, gamma=0.5).run(started, **FIRST)
    assert "optimizer.lr=0.05" in raised.value.message
    assert "1 more: scheduler.gamma" in raised.value.message
    assert "STEPFAST_CHANGE=optimizer.lr,scheduler.gamma" in raised.value.hint


def test_a_change_of_another_setting_does_not_help(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_CHANGE", "scheduler.gamma")
    with pytest.raises(SettingChanged, match=r"optimizer\.lr=0\.05"):
        build(lr=0.01).run(started, **FIRST)


def test_change_as_an_argument(started: Path, tmp_path: Path) -> None:
    shutil.copytree(started, tmp_path / "run")
    script = build(lr=0.01)
    run = script.run(tmp_path / "run", change=("optimizer.lr",), **FIRST)
    assert script.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * 0.9**3)
    run.close()


def test_a_changed_rate_without_a_schedule_is_the_new_one(tmp_path: Path) -> None:
    def start(lr: float, **arguments: Any) -> tuple[Run, Script]:
        script = build(lr=lr)
        script.scheduler = None
        return script.run(tmp_path / "run", **arguments), script

    run, script = start(0.05)
    with pytest.raises(scene.Crash):
        scene.crashing(run, script, 4)
    run, script = start(0.2, change=("optimizer.lr",))
    seen = []
    for epoch in run.epochs():
        for batch in epoch:
            seen.append(script.optimizer.param_groups[0]["lr"])
            scene.do_step(run, script, batch)
    assert seen == [0.2] * 7

    # From now on the new value is the one the run has.
    with pytest.raises(SettingChanged, match=r"optimizer\.lr=0\.2; .* has 0\.05"):
        start(0.05)


def test_values_in_change_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        build().run(tmp_path / "run", change=("optimizer.lr=0.1",))
    assert "STEPFAST_CHANGE=optimizer.lr" in raised.value.hint
    assert not (tmp_path / "run").exists()


def test_settings_that_are_free(started: Path, tmp_path: Path) -> None:
    free = {"epochs": 5, "steps": 9, "save_steps": 7, "on_log": lambda values, step: None, "progress": True}
    kept = Options(hyperparameters={"width": 5}, keep=Retention(newest=9), save=Every(steps=2))
    shutil.copytree(started, tmp_path / "run")
    with build().run(tmp_path / "run", **(FIRST | free | {"options": kept})) as run:
        assert run.step == 3
        assert run.receipt.differs == ()


def test_another_run_is_not_compared_with_the_one_before_even_after_a_second_crash(tmp_path: Path, said: Said) -> None:
    path = tmp_path / "run"
    scene.crash_at(path, 8, save_steps=5)
    changed = build(lr=0.01)
    run = changed.run(path, save_steps=6, change=("optimizer.lr",))
    with pytest.raises(scene.Crash):
        scene.crashing(run, changed, 6)  # saved at 6; rows of steps 6 and 7 are still those of the first rate
    script = build(lr=0.01)
    run = script.run(path, save_steps=6)
    assert (run.step, run.receipt.computed_again) == (6, 0)
    scene.train(run, script)
    assert said.nothing("not as it was before")
