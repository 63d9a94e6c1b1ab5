"""The boundary that is kept for an exception: whole or not stored, stored as it is now, and gone when it is over."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stepfast
from tests.trainer import scene
from tests.trainer.conftest import Said
from tests.trainer.scene import Crash, Run, Script

pytestmark = pytest.mark.slow


class Thin(nn.Module):
    """One parameter is a thin slice of a big tensor; small ones beside it make a group that is gathered by one call."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.randn(3))
        self.slice = nn.Parameter(torch.randn(8, 400)[:, :2])
        self.after = nn.Parameter(torch.randn(3))
        self.last = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = x.sum() * self.slice.sum() + self.before.sum() + self.after.sum() + self.last.sum()
        return total


def test_thin_slice_is_stored_as_it_is_at_each_save(tmp_path: Path) -> None:
    """Not as it was when the copy was prepared."""

    def start() -> tuple[Thin, dict[int, torch.Tensor]]:
        torch.manual_seed(3)
        model, after = Thin(), {}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run = Run(tmp_path / "run", model=model, optimizer=optimizer, steps=8, save_steps=1)
        scene.started.append(run)
        for step in run:
            optimizer.zero_grad()
            model(torch.full((2,), float(step))).square().backward()
            optimizer.step()
            after[step + 1] = model.slice.detach().clone()
        return model, after

    model, after = start()
    assert model.slice.stride() == (400, 1)
    saved = sorted(int(folder.name.removeprefix("step-")) for folder in (tmp_path / "run/checkpoints").glob("step-*"))
    assert saved[-1] == 8
    assert len(saved) >= 2
    assert not torch.equal(after[saved[-1]], after[saved[-2]])
    for step in saved:
        stored = stepfast.load(f"{tmp_path / 'run'}@{step}")["model.slice"]
        assert torch.equal(stored, after[step]), f"step {step}"
    again, _ = start()
    assert torch.equal(again.slice, after[8])


# ------------------------------------------------------------------ p.data


class Wide(nn.Module):
    """Its only parameter is longer than what is read of it to see a write."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.square().sum() * x.sum()


def everything(parameter: nn.Parameter, gradient: torch.Tensor) -> None:
    parameter.data -= 0.01 * gradient


def the_end_only(parameter: nn.Parameter, gradient: torch.Tensor) -> None:
    parameter.data[40:] -= 0.01 * gradient[40:]


@pytest.mark.parametrize(
    ("write", "has_optimizer"),
    [(everything, False), (the_end_only, False), (everything, True)],
    ids=["no optimizer", "no optimizer, the end of it only", "an optimizer"],
)
@pytest.mark.parametrize("save_steps", [0, 4])
def test_exception_after_an_update_by_data(
    tmp_path: Path, write: Callable[[nn.Parameter, torch.Tensor], None], has_optimizer: bool, save_steps: int
) -> None:
    """`p.data` moves no version counter, and `autograd.grad` leaves no gradient that could be noticed."""

    def start(path: Path | None, crash_at: int | None = None) -> tuple[torch.Tensor, int]:
        torch.manual_seed(3)
        model = Wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if has_optimizer else None
        run = Run(path, model=model, optimizer=optimizer, steps=8, save_steps=save_steps)
        scene.started.append(run)
        began_at = run.step
        for step in run:
            (gradient,) = torch.autograd.grad(model(torch.rand(3)), model.parameters())
            write(model.weight, gradient)
            if step == crash_at:
                raise Crash
        return model.weight.detach().clone(), began_at

    straight, _ = start(None)
    with pytest.raises(Crash):
        start(tmp_path / "run", 6)
    resumed, began_at = start(tmp_path / "run")
    assert began_at == save_steps, "the boundary of the step that was updated is not whole"
    assert torch.equal(resumed, straight)


def test_exception_before_an_update_by_data_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    """Without an optimizer nobody can tell whether there was an update: what was saved before counts."""
    model = Wide()

    def train(run: Run) -> None:
        for step in run:
            if step == 5:
                raise Crash
            everything(model.weight, torch.ones(64))

    with pytest.raises(Crash):
        train(Run(tmp_path / "run", model=model, steps=8, save_steps=2))
    run = Run(tmp_path / "run", model=model, steps=8, save_steps=2)
    assert run.step == 4
    run.close()


def test_break_after_an_update_by_data_counts_the_step() -> None:
    script = scene.build()
    run = script.run(None)
    for epoch in run.epochs():
        for index, batch in epoch.enumerate():
            gradients = torch.autograd.grad(scene.loss_of(script, batch), list(script.model.parameters()))
            for parameter, gradient in zip(script.model.parameters(), gradients, strict=True):
                everything(parameter, gradient)
            run.log(loss=1.0)
            if index == 2:
                break
    assert run.step == 6
    assert run.history.steps("loss") == list(range(6))


# ------------------------------------------------------------------ arrays


@pytest.mark.parametrize(
    ("length", "goes_on_at"), [(3, 4), (600_000, 0)], ids=["small: copied at the boundary", "big: not saved late"]
)
def test_array_in_the_state_written_before_an_exception(tmp_path: Path, length: int, goes_on_at: int) -> None:
    def start(path: Path | None, crash_at: int | None = None) -> tuple[np.ndarray[Any, Any], torch.Tensor, int]:
        script = scene.build()
        run = script.run(path, epochs=1, save_steps=0)
        run.state.setdefault("seen", np.zeros(length))
        began_at = run.step
        for batch in run:
            run.state["seen"][-1] += run.step + 1  # far from the part that is looked at to see a write
            if run.step == crash_at:
                raise Crash
            scene.do_step(run, script, batch)
        return run.state["seen"], script.model.outer.weight.detach().clone(), began_at

    seen, weight, _ = start(None)
    assert seen[-1] == 15
    with pytest.raises(Crash):
        start(tmp_path / "run", 4)
    seen_again, weight_again, began_at = start(tmp_path / "run")
    assert began_at == goes_on_at
    assert np.array_equal(seen_again, seen)
    assert torch.equal(weight_again, weight)


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize(
    "save_steps",
    [
        0,
        2,
    ],
    ids=["no save", "after saves"],
)
def test_gradients_are_not_kept_alive(tmp_path: Path, save_steps: int) -> None:
    """They would cost their memory twice: `zero_grad` at the head of a step frees those of the step before."""
    script = scene.build()
    run = script.run(tmp_path / "run", epochs=1, save_steps=save_steps)
    survived = []
    for batch in run:
        gradients = [weakref.ref(p.grad) for p in script.model.parameters() if p.grad is not None]
        assert len(gradients) == (0 if run.step == 0 else 6)
        script.optimizer.zero_grad(set_to_none=True)
        survived += [run.step for gradient in gradients if gradient() is not None]
        scene.loss_of(script, batch).backward()
        script.optimizer.step()
    assert survived == []


@pytest.mark.parametrize(("place", "goes_on_at"), [("before zero_grad", 4), ("after zero_grad", 0)])
def test_boundary_with_gradients_is_whole_while_they_live(tmp_path: Path, place: str, goes_on_at: int) -> None:
    def start(path: Path | None, crash_at: str = "", step: int = 4) -> tuple[Script, int]:
        script = scene.build()
        run = script.run(path, epochs=1, save_steps=0)
        began_at = run.step
        for batch in run:
            if (run.step, "before zero_grad") == (step, crash_at):
                raise Crash
            script.optimizer.zero_grad(set_to_none=True)
            if (run.step, "after zero_grad") == (step, crash_at):
                raise Crash
            scene.loss_of(script, batch).backward()
            script.optimizer.step()
        return script, began_at

    straight, _ = start(None)
    with pytest.raises(Crash):
        start(tmp_path / "run", place)
    again, began_at = start(tmp_path / "run")
    assert began_at == goes_on_at
    for name, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name


# ------------------------------------------------------------------ names


class Compiled(nn.Module):
    """The names of a compiled module, without a compiler."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._orig_mod = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._orig_mod(x)


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True)], ids=["left out", "put around"])
def test_training_flags_follow_a_compiler_s_wrapper(tmp_path: Path, said: Said, first: bool, then: bool) -> None:
    """A module in eval mode among others stays so where the model is compiled at one start and not at the next."""

    def start(wrapped: bool) -> tuple[nn.Module, Script, Run]:
        script = scene.build()
        inner = script.model
        inner.norm.eval()
        if wrapped:
            script.model = Compiled(inner)
        return inner, script, script.run(tmp_path / "run", epochs=1)

    _, script, run = start(first)
    for batch in run:
        if run.step == 4:
            break
        scene.do_step(run, script, batch)
    inner, script, run = start(then)
    assert run.step == 4
    flags = {"norm": False, "inner": True, "outer": True}
    assert {name: getattr(inner, name).training for name in flags} == flags
    for batch in run:
        assert {name: getattr(inner, name).training for name in flags} == flags
        scene.do_step(run, script, batch)
    assert inner.norm.num_batches_tracked == 0
