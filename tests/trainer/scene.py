"""A script to be disturbed: ten steps that notice any state that was lost, and what it ends with.

Momentum, dropout, running statistics, a decaying learning rate, shuffling, a short last batch, a tail that draws and
carries `run.state` on. Everything runs in the test's own process; a crash is an exception after the update, or
`run.close()`: both leave finished steps that no checkpoint has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepfast
from stepfast.trainer.loop import Epoch

EPOCHS = 2
EPOCH_BATCHES = 5
STEPS = EPOCHS * EPOCH_BATCHES
SAVE_STEPS = 3

Run = stepfast.Run

started: list[Run] = []
"""Runs of the test in hand."""


class Crash(Exception):
    """What a script of a test dies of."""


@dataclass(slots=True)
class Script:
    """The objects that a script builds before Run."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    loader: Any

    def run(self, path: Path | str | None, **arguments: Any) -> Run:
        given: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "data": self.loader,
            "save_steps": SAVE_STEPS,
        }
        if not {"epochs", "steps"} & arguments.keys():
            given["epochs"] = EPOCHS
        run = Run(path, **(given | arguments))
        started.append(run)
        return run


def model(**changed: nn.Module) -> nn.Module:
    """`changed` puts other modules in place of those of these names; None leaves one out."""
    parts: dict[str, nn.Module] = {
        "inner": nn.Linear(3, 5),
        "norm": nn.BatchNorm1d(5),
        "drop": nn.Dropout(0.4),
        "outer": nn.Linear(5, 2),
    } | changed
    made = nn.Sequential()
    for name, part in parts.items():
        if part is not None:
            made.add_module(name, part)
    return made


def build(
    *,
    lr: float = 0.05,
    gamma: float = 0.9,
    batch_size: int = 4,
    samples: int = 19,
    seed: int = 11,
    net: Callable[[], nn.Module] = model,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
) -> Script:
    torch.manual_seed(seed)
    data = TensorDataset(torch.randn(samples, 3), torch.randn(samples, 2))
    built = net()
    optimizer = torch.optim.SGD(built.parameters(), lr=lr, momentum=0.9)
    make_schedule = schedule or (lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=gamma))
    return Script(built, optimizer, make_schedule(optimizer), DataLoader(data, batch_size=batch_size, shuffle=True))


def loss_of(script: Script, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return (script.model(inputs) - targets).square().mean()


def update(script: Script, loss: torch.Tensor) -> None:
    loss.backward()
    script.optimizer.step()
    if script.scheduler is not None:
        script.scheduler.step()
    script.optimizer.zero_grad()


def do_step(run: Run, script: Script, batch: Any) -> None:
    loss = loss_of(script, batch)
    update(script, loss)
    run.log(loss=loss)


def tail(run: Run, epoch: Epoch) -> None:
    """What a script does after an epoch: it draws from the same generator, logs, and carries a value on."""
    run.log(drawn=torch.rand(()))
    run.state["sum"] = run.state.get("sum", 0.0) + epoch.mean("loss")


def train(run: Run, script: Script) -> None:
    for epoch in run.epochs():
        script.model.train()
        for batch in epoch:
            do_step(run, script, batch)
        tail(run, epoch)


@dataclass(frozen=True, slots=True)
class Final:
    """What a run ends with; equal only if it is exact."""

    weights: dict[str, str]
    optimizer: dict[str, str]
    schedule: dict[str, Any]
    rows: tuple[tuple[int, int, str, float], ...]
    state: dict[str, Any]
    step: int
    drawn_next: float


def final(run: Run, script: Script) -> Final:
    """To be called once, after the loop: it draws."""
    moments = {
        f"{number}.{key}": bits(value)
        for number, state in script.optimizer.state_dict()["state"].items()
        for key, value in state.items()
    }
    return Final(
        weights={name: bits(tensor) for name, tensor in script.model.state_dict().items()},
        optimizer=moments | {"lr": repr([group["lr"] for group in script.optimizer.param_groups])},
        schedule={} if script.scheduler is None else script.scheduler.state_dict(),
        rows=tuple(run.history.rows()),
        state=dict(run.state),
        step=run.step,
        drawn_next=float(torch.rand(())),
    )


def bits(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(raw).hexdigest()}"


def finish(path: Path | str | None, loop: Callable[[Run, Script], object] = train, **arguments: Any) -> Final:
    """A start of the script that reaches its end."""
    script = build()
    run = script.run(path, **arguments)
    loop(run, script)
    return final(run, script)


def crash_at(path: Path, step: int, **arguments: Any) -> None:
    """A start that dies after the update of `step`, so that what follows the newest checkpoint is computed again."""
    script = build()
    run = script.run(path, **arguments)
    try:
        crashing(run, script, step)
    except Crash:
        return
    raise AssertionError(f"step {step} was never reached")


def crashing(run: Run, script: Script, step: int) -> None:
    for epoch in run.epochs():
        script.model.train()
        for batch in epoch:
            do_step(run, script, batch)
            if run.step == step:
                raise Crash
        tail(run, epoch)


def files(path: Path) -> dict[str, bytes]:
    """All of a run's directory that must stay as it is when a start is refused: not the lock, not the ledger."""
    skipped = ("lock", "ledger.jsonl", "agent.log", "agent.sock")
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in skipped
    }


def batches_of(script: Script) -> Iterator[Any]:
    """A generator of batches: it can be used once."""
    yield from script.loader
