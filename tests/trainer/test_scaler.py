"""A GradScaler belongs to the train state: its scale, and how many good steps it has counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stepfast

pytestmark = pytest.mark.slow


class Crash(Exception):
    pass


def train(path: Path | None, *, crash_at: int | None = None) -> tuple[list[float], dict[str, float]]:
    """Ten steps; the gradients of step 4 overflow, so its update is skipped and the scale halved."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    run = stepfast.Run(path, model=model, optimizer=optimizer, scaler=scaler, steps=10, save_steps=2)
    for step in run:
        loss = model(torch.randn(8, 4)).square().mean() * (float("inf") if step == 4 else 1.0)
        scaler.scale(loss).backward()
        if step == crash_at:
            raise Crash
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        run.log(scale=scaler.get_scale())
    final = {"scale": scaler.get_scale(), "good": scaler.state_dict()["_growth_tracker"]}
    return [*model.weight.flatten().tolist(), *run.history["scale"]], final


@pytest.mark.parametrize("crash_at", [1, 4, 5, 9])
def test_a_resumed_scaler_goes_on_where_it_was(tmp_path: Path, crash_at: int) -> None:
    undisturbed = train(None)
    assert len(set(undisturbed[0][8:])) == 2, "the scale never moved: nothing is tested"
    with pytest.raises(Crash):
        train(tmp_path / "run", crash_at=crash_at)
    assert train(tmp_path / "run") == undisturbed
