"""A resume begins at the boundary, whatever the script does at the head of an epoch, and steps that do not count leave
no trace: not in the history, not in the self-check, not in the generators."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepfast.core.errors import UsageError
from tests.forkserver import ForkServer
from tests.trainer import scene
from tests.trainer.conftest import Said
from tests.trainer.scene import Crash, Run, Script

pytestmark = pytest.mark.slow


class Memory(nn.Module):
    """Carries a hidden state from batch to batch, that `reset` replaces by another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(6, 3)
        self.out = nn.Linear(3, 2)
        self.register_buffer("hidden", torch.zeros(1, 3))

    def reset(self) -> None:
        self.hidden = torch.zeros(1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.hidden.expand(len(x), 3)
        now = torch.tanh(self.cell(torch.cat([x, before], 1)))
        self.hidden = now.detach().mean(0, keepdim=True)
        return self.out(now)


def replace_a_buffer(script: Script) -> None:
    script.model.reset()


def write_a_buffer(script: Script) -> None:
    script.model.hidden.zero_()


def write_by_data(script: Script) -> None:
    for parameter in script.model.parameters():
        parameter.data.mul_(0.9)


def replace_a_moment(script: Script) -> None:
    for state in script.optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"] * 0.5


@pytest.mark.parametrize("head", [replace_a_buffer, write_a_buffer, write_by_data, replace_a_moment])
@pytest.mark.parametrize(("crash_at", "goes_on_at"), [(8, 6), (5, 5), (2, 0)], ids=["mid-epoch", "its head", "first"])
def test_head_of_an_epoch(
    tmp_path: Path, said: Said, head: Callable[[Script], None], crash_at: int, goes_on_at: int
) -> None:
    """It runs again where a resume falls into the middle of its epoch: what it does then is undone."""

    def start(path: Path | None, crash_at: int | None = None) -> tuple[scene.Final, int]:
        script = scene.build(net=Memory)
        run = script.run(path)
        began_at = run.step
        for epoch in run.epochs():
            head(script)
            for batch in epoch:
                scene.do_step(run, script, batch)
                if run.step == crash_at:
                    raise Crash
        return scene.final(run, script), began_at

    straight, _ = start(None)
    with pytest.raises(Crash):
        start(tmp_path / "run", crash_at)
    resumed, began_at = start(tmp_path / "run")
    assert began_at == goes_on_at
    assert resumed == straight
    assert said.nothing("is not as it was")
    assert said.nothing("computed again, all equal") == (crash_at == goes_on_at)


# ------------------------------------------------------------------ what was logged


@pytest.mark.parametrize("crash_at", [8, 6, 5, 2])
def test_log_at_the_head_of_an_epoch_is_in_the_history_once(tmp_path: Path, said: Said, crash_at: int) -> None:
    told: list[tuple[int, dict[str, float]]] = []

    def on_log(values: dict[str, float], *, step: int) -> None:
        told.append((step, values))

    def start(path: Path | None, crash_at: int | None = None) -> scene.Final:
        script = scene.build()
        run = script.run(path, on_log=on_log)
        for epoch in run.epochs():
            run.log(lr=script.optimizer.param_groups[0]["lr"])
            for batch in epoch:
                scene.do_step(run, script, batch)
                if run.step == crash_at:
                    raise Crash
        assert run.history.steps("lr") == [0, 5]
        return scene.final(run, script)

    straight = start(None)
    told_straight, told[:] = list(told), []
    with pytest.raises(Crash):
        start(tmp_path / "run", crash_at)
    assert start(tmp_path / "run") == straight
    assert told == told_straight
    assert said.nothing("is not as it was")


@pytest.mark.parametrize("how", ["return", "return from run", "exception"])
def test_log_of_a_step_that_was_left_before_its_update(tmp_path: Path, undisturbed: Any, how: str) -> None:
    """It does not count: the next start logs the step once more."""

    def logs_first(run: Run, script: Script, leave_at: int = -1) -> None:
        for epoch in [run] if how == "return from run" else run.epochs():
            script.model.train()
            for batch in epoch:
                loss = scene.loss_of(script, batch)
                run.log(loss=loss)
                if run.step == leave_at:
                    if how == "exception":
                        raise Crash
                    return
                scene.update(script, loss)

    script = scene.build()
    run = script.run(None)
    logs_first(run, script)
    straight = scene.final(run, script)
    script = scene.build()
    run = script.run(tmp_path / "run", save_steps=0)
    try:
        logs_first(run, script, 7)
    except Crash:
        assert how == "exception"
    assert run.history.steps("loss") == list(range(7))
    script = scene.build()
    run = script.run(tmp_path / "run", save_steps=0)
    assert run.step == 7
    logs_first(run, script)
    assert run.history.steps("loss") == list(range(10))
    assert scene.final(run, script) == straight


# ------------------------------------------------------------------ steps that were dropped


def limits_batches(run: Run, script: Script, crash_at: int | None = None) -> None:
    for epoch in run.epochs():
        for index, batch in epoch.enumerate():
            if index >= 3:
                break
            scene.do_step(run, script, batch)
            if run.step == crash_at:
                raise Crash


@pytest.mark.parametrize("crash_at", [4, 5, 7])
def test_limited_batches_are_no_false_alarm(tmp_path: Path, said: Said, crash_at: int) -> None:
    """The batch that was fetched for nothing is no part of the next step."""
    script = scene.build()
    run = script.run(None, epochs=3)
    limits_batches(run, script)
    straight = scene.final(run, script)
    assert straight.step == 9

    script = scene.build()
    run = script.run(tmp_path / "run", epochs=3, save_steps=0)
    with pytest.raises(Crash):
        limits_batches(run, script, crash_at)
    said.forget()
    script = scene.build()
    run = script.run(tmp_path / "run", epochs=3, save_steps=0)
    assert run.step == crash_at - crash_at % 3
    limits_batches(run, script)
    assert scene.final(run, script) == straight
    assert said.nothing("is not as it was")
    assert said.one("computed again,").endswith("all equal to what was seen before the crash")


def windows(run: Run, script: Script, *, break_in: tuple[int, int] | None, crash_at: int | None = None) -> None:
    """Two batches a step; leaves epoch `break_in[0]` at batch `break_in[1]`, its forward and backward done."""
    for epoch in run.epochs():
        script.model.train()
        for index, batch in epoch.enumerate():
            loss = scene.loss_of(script, batch) / run.window_size
            loss.backward()
            run.log(loss=loss)
            if (run.epoch, index) == break_in:
                break
            if run.window_end:
                script.optimizer.step()
                script.scheduler.step()
                script.optimizer.zero_grad()
                if run.step == crash_at:
                    raise Crash
        run.log(tail=torch.rand(()))


@pytest.mark.parametrize(
    ("index", "crash_at"),
    [(2, 2), (3, 2), (3, 3), pytest.param(0, 1), (1, None)],
    ids=["first of a window", "last of a window", "a step later", "first of all", "no crash"],
)
def test_break_inside_a_window_drops_all_of_it(tmp_path: Path, said: Said, index: int, crash_at: int | None) -> None:
    script = scene.build()
    run = script.run(None, accumulate=2)
    windows(run, script, break_in=(0, index))
    straight = scene.final(run, script)
    assert straight.step == index // 2 + 3
    assert run.history.steps("loss") == list(range(straight.step))

    script = scene.build()
    run = script.run(tmp_path / "run", accumulate=2, save_steps=0)
    if crash_at is not None:
        with pytest.raises(Crash):
            windows(run, script, break_in=(0, index), crash_at=crash_at)
        script = scene.build()
        run = script.run(tmp_path / "run", accumulate=2, save_steps=0)
        assert run.step == index // 2
    windows(run, script, break_in=(0, index))
    assert scene.final(run, script) == straight
    left_out = 5 - index // 2 * 2
    assert said.one("epoch 1 ended by break").endswith(f"epoch 1 ended by break: {left_out} batches left out")
    assert said.nothing("is not as it was")


@pytest.mark.parametrize("index", [2, 3])
def test_return_inside_a_window_goes_on_at_its_first_batch(tmp_path: Path, index: int) -> None:
    def start(path: Path | None, leave_at: tuple[int, int] | None = None) -> tuple[scene.Final | None, int, int]:
        script = scene.build()
        run = script.run(path, accumulate=2, save_steps=0)
        began_at, first = run.step, -1
        script.model.train()
        for batch in run:
            first = run.batch_index if first < 0 else first
            loss = scene.loss_of(script, batch) / run.window_size
            loss.backward()
            run.log(loss=loss)
            if (run.epoch, run.batch_index) == leave_at:
                return None, began_at, first
            if run.window_end:
                script.optimizer.step()
                script.scheduler.step()
                script.optimizer.zero_grad()
        return scene.final(run, script), began_at, first

    straight, _, _ = start(None)
    start(tmp_path / "run", (1, index))
    resumed, began_at, first = start(tmp_path / "run")
    assert (began_at, first) == (4, 2)
    assert resumed == straight


# ------------------------------------------------------------------ ends


@pytest.mark.parametrize("kind", ["epochs", "run", "no data"])
def test_finished_run_restores_the_generators(tmp_path: Path, kind: str) -> None:
    """A run limited by steps ends inside an epoch; what the script draws after it is the same at every start."""

    def start() -> tuple[list[float], dict[str, torch.Tensor]]:
        script = scene.build()
        run = script.run(tmp_path / "run", steps=3, **({"data": None} if kind == "no data" else {}))
        torch.rand(2)  # the loop goes on from the boundary, not from here
        for batches in run.epochs() if kind == "epochs" else [run]:
            script.model.train()
            for batch in batches:
                torch.rand(())
                if kind != "no data":
                    scene.do_step(run, script, batch)
        return torch.rand(2).tolist(), script.model.state_dict()

    drawn, weights = start()
    for _ in range(2):
        drawn_again, weights_again = start()
        assert drawn_again == drawn
        assert all(torch.equal(weights[name], weights_again[name]) for name in weights)


def test_own_handler_of_ctrl_c_stays_in_place(tmp_path: Path, said: Said) -> None:
    hits = []

    def own(number: int, frame: object) -> None:
        hits.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:
        script = scene.build()
        run = script.run(tmp_path / "run")
        for batch in run:
            assert signal.getsignal(signal.SIGINT) is own
            scene.do_step(run, script, batch)
            if run.step == 3:
                signal.raise_signal(signal.SIGINT)
                assert hits == [signal.SIGINT]
        assert run.step == 10
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    assert said.nothing("Ctrl-C")


class NoBatch:
    """Has no length and never gives anything."""

    def __init__(self) -> None:
        self.num_asked = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.num_asked += 1
        assert self.num_asked < 5, "asked again and again"
        return iter(())


def _too_few() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.ones(3, 3)), batch_size=4, drop_last=True)


@pytest.mark.parametrize("kind", ["epochs", "run"])
@pytest.mark.parametrize("data", [_too_few, list, NoBatch], ids=["drop_last", "list", "unknown length"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "bare"])
def test_data_without_a_batch_is_an_error_not_an_endless_loop(
    tmp_path: Path, data: Callable[[], Any], kind: str, kept: bool
) -> None:
    script = scene.build()

    def train() -> None:
        run = script.run(tmp_path / "run" if kept else None, data=data(), steps=10)
        for epoch in run.epochs() if kind == "epochs" else [run]:
            assert run.epoch < 5, "epoch after epoch of nothing"
            for _ in epoch:
                raise AssertionError

    with pytest.raises(UsageError) as raised:
        train()
    assert "no batch" in raised.value.message
    assert raised.value.hint


LEFT = """
import torch
import stepfast
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=4)
run = stepfast.Run("run", model=model, optimizer=optimizer, data=loader, epochs=3, save_steps=0)
bar = run.epochs()  # as `bar = tqdm(run.epochs())`: nobody closes it before the interpreter goes down
for epoch in bar:
    for (batch,) in epoch:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    if epoch.number == 1:
        break
"""


@pytest.mark.parametrize("cold", [False, True], ids=["forked", "new interpreter"])
def test_loop_left_in_a_variable_is_told_when_the_run_is_dropped(
    tmp_path: Path, fork_server: ForkServer, cold: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEFT)
    child = fork_server.start_script(script, cwd=tmp_path, cold=cold)
    assert child.wait(30) == 0, child.stderr
    (line,) = (line for line in child.stderr.splitlines() if "left without an end to its loop" in line)
    assert line.endswith("the next start goes on from there")
    assert "Traceback" not in child.stderr
    assert (tmp_path / "run/checkpoints/step-00000003").exists(), "the end of the first epoch"


def test_line_about_a_dropped_run_names_what_is_durable(tmp_path: Path, fork_server: ForkServer) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEFT)
    child = fork_server.start_script(script, cwd=tmp_path)
    assert child.wait(30) == 0, child.stderr
    assert "left without an end to its loop; step 3 is durable" in child.stderr
