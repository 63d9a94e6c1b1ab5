"""A whole run of 20 ms steps with 300 MB of state and 10 saves, against the same loop without Stepfast."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from bench.objects import Leaves, run_directory, trained
from stepfast.trainer.run import Run

STEPS = 1000
STEP_S = 0.020
SAVES = 10
LEAVES = 25
LEAF_NUMBERS = 1_000_000


@dataclass(slots=True, kw_only=True)
class Pass:
    """Seconds of one walk: from building to the end, from the first step to the last, and of processor time there."""

    whole_s: float
    inside_s: float
    thread_s: float


class Training:
    """The user's side of the loop: the same objects and the same amount of work with and without Stepfast."""

    def __init__(self, turns: int) -> None:
        torch.manual_seed(0)
        self.turns = turns
        self.model = Leaves(LEAVES, LEAF_NUMBERS)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        trained(self.model, self.optimizer)
        self.data = DataLoader(TensorDataset(torch.arange(STEPS, dtype=torch.float32)), batch_size=1)
        self._matrix = torch.randn(256, 256) / 16

    def step(self, number: int, batch: torch.Tensor) -> float:
        """Fixed work in one thread; each step updates one leaf, so that after 25 steps all of them have changed."""
        state = self._matrix
        for _ in range(self.turns):
            state = torch.mm(state, self._matrix)
        parameter = self.model.leaves[number % LEAVES]
        parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(state[0, 0]) + float(batch[0])


def measure(work: Path) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    turns = _turns_for(STEP_S)
    plain: list[Pass] = []
    kept: list[Pass] = []
    for with_stepfast in (False, True, True, False):
        if with_stepfast:
            with run_directory(work) as path:
                kept.append(_with_stepfast(path, turns))
        else:
            plain.append(_without(turns))
    found: dict[str, list[float]] = {"turns": [turns]}
    for key in ("whole", "inside", "thread"):
        ours, theirs = ([asdict(p)[f"{key}_s"] for p in passes] for passes in (kept, plain))
        found |= {f"{key}_ours_s": ours, f"{key}_plain_s": theirs}
        found[key] = [statistics.mean(ours) / statistics.mean(theirs)]
        found[f"{key}_null"] = [*ours, *theirs]
    return found


def _without(turns: int) -> Pass:
    training = Training(turns)
    began = time.perf_counter()
    inside, thread = time.perf_counter(), time.thread_time()
    for number, (batch,) in enumerate(training.data):
        training.step(number, batch)
    ended, thread_ended = time.perf_counter(), time.thread_time()
    return Pass(whole_s=ended - began, inside_s=ended - inside, thread_s=thread_ended - thread)


def _with_stepfast(path: str, turns: int) -> Pass:
    training = Training(turns)
    began = time.perf_counter()
    run = Run(
        path,
        model=training.model,
        optimizer=training.optimizer,
        data=training.data,
        epochs=1,
        save_steps=STEPS // SAVES,
    )
    inside = thread = ended = thread_ended = 0.0
    for (batch,) in run:
        if run.step == 0:
            inside, thread = time.perf_counter(), time.thread_time()
        run.log(loss=training.step(run.step, batch))
        if run.step == STEPS - 1:
            ended, thread_ended = time.perf_counter(), time.thread_time()
    over = time.perf_counter()
    assert run.step == STEPS, "the run did not end"
    return Pass(whole_s=over - began, inside_s=ended - inside, thread_s=thread_ended - thread)


def _turns_for(step_s: float) -> int:
    """How much work fills a step here and now; every walk of this process then does exactly this much."""
    probe = Training(100)
    probe.step(0, torch.zeros(1))
    spent = []
    for _ in range(10):
        began = time.perf_counter()
        probe.step(0, torch.zeros(1))
        spent.append(time.perf_counter() - began)
    probe.turns = 0
    fixed = []
    for _ in range(10):
        began = time.perf_counter()
        probe.step(0, torch.zeros(1))
        fixed.append(time.perf_counter() - began)
    one = (min(spent) - min(fixed)) / 100
    return max(1, round((step_s - min(fixed)) / one))
