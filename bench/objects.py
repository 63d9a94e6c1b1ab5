"""Models and loops that are measured: leaves of one size, written to at every step so that no file stays the same."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stepfast.trainer.run import Run

LEAVES = 88
LEAF_NUMBERS = 1 << 20
"""The big state: 88 parameters of 4 MiB and AdamW's two tensors for each make 1 GiB."""


class Leaves(torch.nn.Module):
    """`count` parameters of `size` numbers each."""

    def __init__(self, count: int, size: int, *, empty: bool = False) -> None:
        super().__init__()
        make = torch.zeros if empty else torch.randn
        self.leaves = torch.nn.ParameterList(torch.nn.Parameter(make(size)) for _ in range(count))


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One update, so that the optimizer has all its state."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def tensors_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found = [parameter.detach() for parameter in model.parameters()]
    for values in optimizer.state.values():
        found += [value for value in values.values() if isinstance(value, torch.Tensor)]
    return found


def move(tensors: list[torch.Tensor]) -> None:
    """Write to every leaf, as a step does."""
    with torch.no_grad():
        torch._foreach_add_([t for t in tensors if t.is_floating_point()], 1e-3)


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@contextmanager
def run_directory(work: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=work) as directory:
        yield f"{directory}/run"


class Watched:
    """A Run whose every save can be timed from outside: when the loop stopped, went on, and was safe on disk."""

    def __init__(self, path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        self.run = Run(path, model=model, optimizer=optimizer, steps=steps, save_steps=1)
        self._steps = iter(self.run)
        next(self._steps)
        keep: Any = self.run._keep
        self.saver = keep.saver
        self.framework = keep.framework

    def save(self) -> tuple[float, float, float]:
        """End the step. Returns seconds for the boundary, for the copy, and until it was committed."""
        began = time.monotonic()
        next(self._steps)
        went_on = time.monotonic()
        self.saver.drain(is_at_boundary=True)
        assert self.saver.last_durable == self.run.step, "the save failed"
        return went_on - began, self.saver.k0_s[-1], self.saver.last_durable_at - began

    def idle(self) -> float:
        """End the step without a save."""
        triggers, self.run._keep.clocks.trigger = self.run._keep.clocks.trigger, _Never()  # type: ignore[union-attr]
        spent = seconds(lambda: next(self._steps))
        self.run._keep.clocks.trigger = triggers  # type: ignore[union-attr]
        return spent

    def private_state(self) -> dict[str, object]:
        return self.run._loop._keeping.private_state()

    def close(self) -> None:
        self._steps.close()  # type: ignore[attr-defined]
        self.run.close()


class _Never:
    def _parts(self) -> tuple[()]:
        return ()
