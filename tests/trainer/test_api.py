"""What a script can ask and say: names of the public face, before a crash and after it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stepfast
from stepfast.core.errors import NoCheckpoint, StepfastError
from tests.trainer import scene
from tests.trainer.conftest import Said
from tests.trainer.scene import Crash, Final, Run, Script, build

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died in step 8: checkpoints of steps 3, 5 and 6; steps 6 and 7 were finished and are not in any."""
    path = tmp_path_factory.mktemp("crashed") / "run"
    scene.crash_at(path, 8)
    return path


@pytest.fixture
def run_path(tmp_path: Path, crashed: Path) -> Path:
    shutil.copytree(crashed, tmp_path / "run")
    return tmp_path / "run"


def test_public_names() -> None:
    assert stepfast.__all__ == [
        "EpochEnd", "Every", "On", "Options", "Retention", "Run", "StepfastError",
        "device", "load", "peek", "rank", "world_size",
    ]  # fmt: skip
    assert all(getattr(stepfast, name) is not None for name in stepfast.__all__)


# ------------------------------------------------------------------ where it stands


def notes(run: Run, script: Script, seen: list[Any]) -> None:
    for epoch in run.epochs():
        assert epoch.number == run.epoch
        assert len(epoch) == scene.EPOCH_BATCHES
        script.model.train()
        for index, batch in epoch.enumerate():
            scene.do_step(run, script, batch)
            seen.append((run.step, run.epoch, index, run.batch_index, run.window_size, run.window_end))
        seen.append(("tail", run.step, epoch.mean("loss")))
        scene.tail(run, epoch)
    seen.append(("end", run.step, run.epoch))


def test_places_are_those_of_the_undisturbed_run_after_a_resume(run_path: Path) -> None:
    straight: list[Any] = []
    script = build()
    notes(script.run(None), script, straight)
    assert straight[0] == (0, 0, 0, 0, 1, True)
    assert straight[7:9] == [(6, 1, 1, 1, 1, True), (7, 1, 2, 2, 1, True)]
    assert straight[-1] == ("end", 10, 2)

    seen: list[Any] = []
    script = build()
    run = script.run(run_path)
    assert (run.step, run.epoch, run.total_steps, len(run)) == (6, 1, 10, 10)
    notes(run, script, seen)
    assert seen == straight[7:], "indices as in the undisturbed epoch; the mean has what was logged before the crash"


def test_mean_of_nothing_is_nan() -> None:
    run = build().run(None)
    for epoch in run.epochs():
        assert math.isnan(epoch.mean("loss"))
        break


@pytest.mark.parametrize(
    ("arguments", "total"),
    [({"epochs": 3}, 15), ({"steps": 7}, 7), ({"epochs": 1, "steps": 7}, 5), ({"epochs": 3, "accumulate": 2}, 9)],
)
def test_total_steps(arguments: dict[str, Any], total: int) -> None:
    run = build().run(None, **arguments)
    assert (run.total_steps, len(run)) == (total, total)


def windows(run: Run, script: Script, seen: list[Any]) -> None:
    """Two batches a step; the third window of an epoch has one."""
    for epoch in run.epochs():
        script.model.train()
        for batch in epoch:
            loss = scene.loss_of(script, batch) / run.window_size
            loss.backward()
            run.log(loss=loss)
            seen.append((run.step, run.batch_index, run.window_size, run.window_end))
            if run.window_end:
                script.optimizer.step()
                script.optimizer.zero_grad()
                if seen[-1][0] == 4 and run.state.get("crash"):
                    raise Crash
        scene.tail(run, epoch)


def test_windows_of_accumulate_and_a_short_last_one(tmp_path: Path) -> None:
    straight: list[Any] = []
    script = build()
    run = script.run(None, accumulate=2)
    windows(run, script, straight)
    end = scene.final(run, script)
    assert end.step == 6
    assert straight[:5] == [(0, 0, 2, False), (0, 1, 2, True), (1, 2, 2, False), (1, 3, 2, True), (2, 4, 1, True)]

    script = build()
    run = script.run(tmp_path / "run", accumulate=2, save_steps=2)
    run.state["crash"] = True
    with pytest.raises(Crash):
        windows(run, script, [])
    script = build()
    run = script.run(tmp_path / "run", accumulate=2, save_steps=2)
    assert (run.step, run.epoch) == (4, 1)
    seen: list[Any] = []
    # What the crashed start had put into run.state came back with the checkpoint; it is taken out by hand.
    first = True

    def once_more(run: Run) -> None:
        nonlocal first
        if first:
            run.state.pop("crash")
            first = False

    for epoch in run.epochs():
        script.model.train()
        for batch in epoch:
            once_more(run)
            loss = scene.loss_of(script, batch) / run.window_size
            loss.backward()
            run.log(loss=loss)
            seen.append((run.step, run.batch_index, run.window_size, run.window_end))
            if run.window_end:
                script.optimizer.step()
                script.optimizer.zero_grad()
        scene.tail(run, epoch)
    assert seen == straight[7:]
    assert scene.final(run, script) == end


# ------------------------------------------------------------------ state, history, log


def test_run_state_comes_back_with_its_types(tmp_path: Path) -> None:
    from collections import Counter, deque

    state = {
        "best": float("inf"), "seen": Counter({3: 2}), "last": deque([1.5, 2.5], maxlen=2), 7: (1, "two"),
        "ema": torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "order": {"b": 1, "a": 2},
    }  # fmt: skip
    script = build()
    run = script.run(tmp_path / "run")
    run.state.update(state)
    with pytest.raises(Crash):
        scene.crashing(run, script, 4)
    run = build().run(tmp_path / "run")
    back = dict(run.state)
    run.close()
    ema, was = back.pop("ema"), state.pop("ema")
    assert back == state
    assert list(back["order"]) == ["b", "a"]
    assert type(back["seen"]) is Counter
    assert back["last"].maxlen == 2
    assert scene.bits(ema) == scene.bits(was)


def test_history_is_cut_at_the_checkpoint_and_grows_on(run_path: Path, undisturbed: Callable[..., Final]) -> None:
    script = build()
    run = script.run(run_path)
    assert run.history.steps("loss") == [0, 1, 2, 3, 4, 5], "steps 6 and 7 are computed again"
    assert run.history.steps("drawn") == [4]
    assert run.history.names() == ["loss", "drawn"]
    assert "loss" in run.history
    assert "other" not in run.history
    with pytest.raises(KeyError, match="'other' was never logged; logged so far: loss, drawn"):
        run.history["other"]
    scene.train(run, script)
    assert run.history.steps("loss") == list(range(10))
    assert len(run.history) == 12
    assert tuple(run.history.rows()) == undisturbed().rows


def test_history_over_a_segment(tmp_path: Path) -> None:
    """4,096 steps fill a segment of the history; a checkpoint after it has two."""

    def count(run: Run) -> None:
        for step in run:
            run.log(square=step * step)
            if step == 4100 and not run.state.get("again"):
                raise Crash

    model = nn.Linear(1, 1)
    run = stepfast.Run(tmp_path / "run", model=model, steps=4110, save_steps=2049)
    with pytest.raises(Crash):
        count(run)
    run = stepfast.Run(tmp_path / "run", model=model, steps=4110, save_steps=2049)
    assert run.step == 4098, "no optimizer: an update by hand could not be seen, so nothing is saved on the way out"
    run.state["again"] = True
    for step in run:
        run.log(square=step * step)
    assert run.history["square"] == [float(step * step) for step in range(4110)]
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints" / "step-00004110").glob("metrics-*"))
    assert names == ["metrics-00000000.bin", "metrics-00000001.bin"]


def test_a_name_logged_twice_in_a_step_counts_with_its_mean() -> None:
    run = build().run(None, steps=1)
    for _ in run:
        run.log(loss=1.0)
        run.log({"loss": torch.tensor(4.0), "a name": 2})
        run.log(loss=1)
    assert run.history["loss"] == [2.0]
    assert run.history["a name"] == [2.0]


def test_what_is_logged_keeps_its_bits() -> None:
    values = [float("nan"), float("inf"), -0.0, 5e-324, 0.1]
    run = build().run(None, steps=len(values))
    for step, _ in enumerate(run):
        run.log(value=torch.tensor([values[step]], dtype=torch.float64))
    assert [value.hex() for value in run.history["value"]] == [value.hex() for value in values]


def test_on_log_once_for_each_step_of_the_run(run_path: Path) -> None:
    seen: list[tuple[int, Mapping[str, float]]] = []
    script = build()
    run = script.run(run_path, on_log=lambda values, step: seen.append((step, values)))
    scene.train(run, script)
    assert [step for step, _ in seen] == [8, 9], "steps 6 and 7 were finished before the crash"
    assert seen[0][1].keys() == {"loss"}
    assert seen[1][1].keys() == {"loss", "drawn"}


def test_on_log_sees_every_step_of_an_undisturbed_run(tmp_path: Path) -> None:
    seen: list[int] = []
    scene.finish(tmp_path / "run", on_log=lambda values, step: seen.append(step))
    assert seen == list(range(10))


# ------------------------------------------------------------------ save, load, peek


def test_saves_by_name_are_tags_that_stay(tmp_path: Path, undisturbed: Callable[..., Final]) -> None:
    def loop(run: Run, script: Script) -> None:
        for epoch in run.epochs():
            script.model.train()
            for batch in epoch:
                scene.do_step(run, script, batch)
                if run.step == 1:
                    run.save("early")
                if run.step == 6:
                    run.save()
            scene.tail(run, epoch)
            run.save(f"epoch-{epoch.number + 1}")

    path = tmp_path / "run"
    final = scene.finish(path, loop, save_steps=1, options=stepfast.Options(keep=stepfast.Retention(newest=2)))
    assert final == undisturbed()
    assert _steps(path) == [2, 5, 9, 10], "the newest two and the tagged ones"
    for name, step in (("early", 2), ("epoch-1", 5), ("epoch-2", 10), ("latest", 10), ("9", 9)):
        peeked = stepfast.peek(f"{path}@{name}")
        assert peeked is not None
        assert peeked.step == step
    with pytest.raises(NoCheckpoint) as raised:
        stepfast.peek(f"{path}@best")
    assert "best" in raised.value.message
    assert raised.value.hint


def _steps(path: Path) -> list[int]:
    return sorted(int(entry.name.removeprefix("step-")) for entry in (path / "checkpoints").glob("step-*"))


def test_load_into_a_model(run_path: Path) -> None:
    script = build()
    run = script.run(run_path)
    at_six = {name: scene.bits(tensor) for name, tensor in script.model.state_dict().items()}
    run.close()
    model = build(seed=99).model
    assert stepfast.load(str(run_path), model=model) is model
    assert {name: scene.bits(tensor) for name, tensor in model.state_dict().items()} == at_six
    older = stepfast.load(f"{run_path}@3", model=build(seed=99).model)
    assert {name: scene.bits(tensor) for name, tensor in older.state_dict().items()} != at_six


def test_load_without_a_model_gives_all_leaves(run_path: Path) -> None:
    leaves = stepfast.load(str(run_path))
    model = stepfast.load(str(run_path), model=build(seed=99).model)
    for name, tensor in model.state_dict().items():
        assert scene.bits(leaves[f"model.{name}"]) == scene.bits(tensor)
    assert any(name.startswith("optimizer.") for name in leaves)
    assert len(leaves) == len(list(leaves))
    with pytest.raises(KeyError):
        leaves["model.nothing"]


def test_load_into_a_model_that_does_not_fit(run_path: Path) -> None:
    model = scene.model(outer=nn.Linear(5, 3))
    before = scene.bits(model.outer.weight)  # type: ignore[arg-type]
    with pytest.raises(StepfastError, match=r"model\.outer\.weight has shape \[3, 5\]"):
        stepfast.load(str(run_path), model=model)
    assert scene.bits(model.outer.weight) == before  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["nowhere", "nowhere@best"])
def test_load_of_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(StepfastError) as raised:
        stepfast.load(str(tmp_path / name))
    assert "nowhere" in raised.value.message
    assert raised.value.hint


def test_paths_may_be_paths(run_path: Path) -> None:
    assert stepfast.peek(run_path).step == 6  # type: ignore[union-attr]
    assert len(stepfast.load(run_path)) > 0


# ------------------------------------------------------------------ receipt, id, what it says


def test_receipt(run_path: Path, said: Said) -> None:
    run = build().run(run_path)
    receipt = run.receipt
    assert receipt is not None
    assert (receipt.path, receipt.source, receipt.step, receipt.epoch, receipt.batch) == (
        str(run_path),
        "disk",
        6,
        1,
        1,
    )
    assert (receipt.finished, receipt.computed_again, receipt.attempt) == (None, 2, 2)
    assert receipt.read_bytes > 0
    assert receipt.read_s > 0
    assert receipt.passed_over == receipt.differs == ()
    assert 3 <= len(receipt.lines()) <= 8
    said.one(f"resumed {run_path} from disk, step 6 (epoch 2, next batch 1), start number 2")
    said.one("2 finished steps will be computed again and compared")
    said.one("read and verified in")
    run.close()


def test_id_is_stable_over_restarts(run_path: Path) -> None:
    with build().run(run_path) as first:
        pass
    with build().run(run_path) as second:
        pass
    assert first.id
    assert first.id == second.id


def test_a_fresh_start_says_where(tmp_path: Path, said: Said) -> None:
    with build().run(tmp_path / "run") as run:
        assert run.receipt is None
    said.one(f"new run in {tmp_path / 'run'}, 10 steps")


def test_no_bar_without_a_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    scene.finish(tmp_path / "run", progress=True)
    captured = capfd.readouterr()
    assert "\r" not in captured.err
    assert captured.out == "", "stdout is the script's"
    assert captured.err.splitlines()[0].startswith("stepfast: new run in ")
    assert captured.err.splitlines()[-1].endswith("the final state is durable")


def test_a_logger_that_would_drop_the_lines_does_not_silence_a_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`logging.basicConfig()` has a handler and drops what is below a warning: the usual state of many scripts."""
    with build().run(tmp_path / "run"):
        pass
    assert "new run in" in capfd.readouterr().err


def test_batches_across_epochs(tmp_path: Path) -> None:
    script = build()
    run = script.run(tmp_path / "run")
    seen = [(run.step, run.epoch, run.batch_index) for _ in run]
    assert seen == [(step, step // 5, step % 5) for step in range(10)]
    assert (run.step, run.epoch) == (10, 2)


def test_steps_without_data(tmp_path: Path) -> None:
    """The loop draws its own batches; the one in hand is in run.state."""

    def loop(run: Run, script: Script, crash: int | None = None) -> None:
        script.model.train()
        for step in run:
            assert step == run.step
            batch = run.state.pop("batch", None)
            if batch is None:
                batch = (torch.randn(4, 3), torch.randn(4, 2))
            scene.do_step(run, script, batch)
            run.state["batch"] = (torch.randn(4, 3), torch.randn(4, 2))
            if step == crash:
                raise Crash

    def start(path: Path | None, crash: int | None = None) -> Final:
        script = build()
        run = script.run(path, data=None, steps=9)
        loop(run, script, crash)
        run.state.pop("batch")
        return scene.final(run, script)

    straight = start(None)
    with pytest.raises(Crash):
        start(tmp_path / "run", 7)
    assert start(tmp_path / "run") == straight


def test_rank_world_size_and_device_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert (stepfast.rank(), stepfast.world_size()) == (0, 1)
    assert stepfast.device() == ("cuda:0" if torch.cuda.is_available() else "cpu")
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(StepfastError) as raised:
        stepfast.rank()
    assert "RANK='two'" in raised.value.message
    assert raised.value.hint
