"""1,200 leaves of 200 bytes: what a save costs when the bytes are few and the names are many."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from bench.objects import Leaves, Watched, move, run_directory, tensors_of, trained
from stepfast.capture.capture import Capture
from stepfast.memory.slot import Slot

SAVES = 16
CAPTURES = 200
WARM_UP = 5


def measure(work: Path) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    model = Leaves(600, 50)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    trained(model, optimizer)
    found: dict[str, list[float]] = {k: [] for k in ("boundary_all_ms", "k0_all_ms", "idle_all_ms")}
    state = tensors_of(model, optimizer)
    with run_directory(work) as path:
        watched = Watched(path, model, optimizer, 3 * SAVES)
        for _ in range(SAVES):
            move(state)
            boundary, k0, _ = watched.save()
            found["boundary_all_ms"].append(1e3 * boundary)
            found["k0_all_ms"].append(1e3 * k0)
            move(state)
            found["idle_all_ms"].append(1e3 * watched.idle())
        collect, copy = _capture(watched.framework, watched.private_state())
        watched.close()
    found |= {"collect_all_ms": collect, "copy_all_ms": copy}
    middle = {key: statistics.median(values[WARM_UP:]) for key, values in found.items()}
    return found | {
        "capture_ms": [statistics.median(a + b for a, b in zip(collect[WARM_UP:], copy[WARM_UP:], strict=True))],
        "copy_ms": [middle["copy_all_ms"]],
        "boundary_ms": [middle["boundary_all_ms"]],
        "idle_ms": [middle["idle_all_ms"]],
        "adam_ms": [_adam(work)],
    }


def _adam(work: Path) -> float:
    model = Leaves(400, 50)
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer)
    with run_directory(work) as path:
        watched = Watched(path, model, optimizer, 4)
        collect, copy = _capture(watched.framework, watched.private_state())
        watched.close()
    return statistics.median(a + b for a, b in zip(collect[WARM_UP:], copy[WARM_UP:], strict=True))


def _capture(framework: Any, private: dict[str, object]) -> tuple[list[float], list[float]]:
    """Collect the train state, then copy it into a slot of our own: milliseconds of each, time after time."""
    capture = Capture(framework)
    small = {"loop.json": bytes(20_000)}
    made = Slot.allocate(capture.bytes_needed(framework.collect(private), small))
    slot = Slot.attach(made.fd, made.size)
    collect, copy = [], []
    for _ in range(CAPTURES):
        began = time.perf_counter()
        state = framework.collect(private)
        collected = time.perf_counter()
        capture.take(state, small, slot=0, memory=slot.view(), instead={})
        copied = time.perf_counter()
        collect.append(1e3 * (collected - began))
        copy.append(1e3 * (copied - collected))
    capture.forget_slots()
    slot.close()
    return collect, copy
