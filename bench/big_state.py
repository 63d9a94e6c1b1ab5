"""1 GiB of state in leaves of 4 MiB: what a save costs the loop, when it is durable, and how long a resume reads."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from bench.objects import LEAF_NUMBERS, LEAVES, Leaves, Watched, move, run_directory, seconds, tensors_of, trained
from stepfast.memory.slot import Slot

SAVES = 5
RESTORES = 3

Measured = dict[str, list[float]]


def measure(work: Path) -> Measured:
    torch.set_num_threads(1)
    model = Leaves(LEAVES, LEAF_NUMBERS)
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer)
    with run_directory(work) as path:
        found = _saves(path, model, optimizer, work)
        del model, optimizer
        found |= _restores(path, work)
    return found


def _saves(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, work: Path) -> Measured:
    found: Measured = {k: [] for k in ("k0_s", "boundary_s", "durable_s", "shared_s", "plain_s", "torch_save_s")}
    state = tensors_of(model, optimizer)
    size = sum(tensor.nbytes for tensor in state)
    copies = _Copies(size)
    watched = Watched(path, model, optimizer, SAVES + 4)

    def ours() -> None:
        boundary, k0, durable = watched.save()
        found["boundary_s"].append(boundary)
        found["k0_s"].append(k0)
        found["durable_s"].append(durable)

    def yardstick() -> None:
        found["shared_s"].append(seconds(copies.to_shared))
        found["plain_s"].append(seconds(copies.to_plain))

    def theirs() -> None:
        found["torch_save_s"].append(seconds(lambda: _torch_save(work / "theirs.pt", model, optimizer)))

    for number in range(SAVES + 2):
        turn: list[Callable[[], None]] = [ours, yardstick, theirs]
        random.shuffle(turn)
        for action in turn:
            move(state)
            action()
        if number == 1:  # both slots, and the page cache for the others, are warm now
            for values in found.values():
                values.clear()
    watched.close()
    copies.close()
    middle = {key: statistics.median(values) for key, values in found.items()}
    return found | {
        "bytes": [size],
        "copy": [middle["k0_s"] / middle["shared_s"]],
        "copy_plain": [middle["k0_s"] / middle["plain_s"]],
        "boundary": [middle["boundary_s"] / middle["shared_s"]],
        "durable": [middle["durable_s"] / middle["torch_save_s"]],
    }


def _restores(path: str, work: Path) -> Measured:
    """Each in a process of its own, in shuffled turns."""
    found: Measured = {k: [] for k in ("restore_s", "load_s", "put_s", "restore_cold_s", "load_cold_s")}
    file, result = work / "theirs.pt", work / "restored.json"

    def fresh(what: str) -> list[float]:
        subprocess.run(
            [sys.executable, "-m", "bench.fresh_restore", what, path, str(file), str(result)], check=True, timeout=60
        )
        values: list[float] = json.loads(result.read_text(encoding="utf-8"))
        return values

    for what in (*random.sample(("ours", "theirs") * RESTORES, 2 * RESTORES), "ours-cold", "theirs-cold"):
        values = fresh(what)
        if what.startswith("ours"):
            found["restore_cold_s" if what.endswith("cold") else "restore_s"] += values
        elif what.endswith("cold"):
            found["load_cold_s"].append(values[0])
        else:
            found["load_s"].append(values[0])
            found["put_s"].append(values[1])
    file.unlink()
    middle = {key: statistics.median(values) for key, values in found.items()}
    return found | {
        "restore": [middle["restore_s"] / middle["load_s"]],
        "restore_put": [middle["restore_s"] / middle["put_s"]],
        "restore_cold": [middle["restore_cold_s"] / middle["load_cold_s"]],
    }


def _torch_save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What people write. It leaves out: RNGs, cursor, history, gradients that wait, strides, digests, the sync of the
    directory, and any care for the file that was there before."""
    with open(path, "wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


class _Copies:
    """One memcpy of the whole state, from ordinary memory, into warm memory of the slot's kind and of the usual one."""

    def __init__(self, size: int) -> None:
        self._size = size
        slot = Slot.allocate(size)
        self._shared = Slot.attach(os.dup(slot.fd), slot.size)
        slot.close()
        self._source, self._plain = (mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2))
        for memory in (self._source, self._plain):
            ctypes.memset(_address(memory), 1, size)

    def to_shared(self) -> None:
        ctypes.memmove(self._shared.address, _address(self._source), self._size)

    def to_plain(self) -> None:
        ctypes.memmove(_address(self._plain), _address(self._source), self._size)

    def close(self) -> None:
        self._shared.close()
        self._source.close()
        self._plain.close()


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
