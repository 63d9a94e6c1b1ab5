"""Data without a length: whether a boundary is one is known only after the next batch was fetched, which draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import stepfast

pytestmark = pytest.mark.slow


class Crash(Exception):
    pass


class Drawn:
    """Each batch is drawn from the global generator when it is fetched."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(5):
            yield torch.randn(4, 3)


def train(path: Path | None, *, crash_at: int | None = None) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = stepfast.Run(path, model=model, optimizer=optimizer, data=Drawn(), epochs=2, save_steps=1)
    for batch in run:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        if run.step == crash_at:
            raise Crash
    return [*model[0].weight.flatten().tolist(), *run.history["loss"]]


@pytest.mark.parametrize("crash_at", [1, 3, 6])
def test_a_boundary_before_a_fetch_that_draws(tmp_path: Path, crash_at: int) -> None:
    undisturbed = train(None)
    with pytest.raises(Crash):
        train(tmp_path / "run", crash_at=crash_at)
    assert train(tmp_path / "run") == undisturbed
