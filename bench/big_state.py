"""1 GiB of state in leaves of 4 MiB: what a save costs the loop, when it is durable, and how long a resume reads."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

import torch

from bench.objects import Leaves, Watched, move, run_directory, seconds, tensors_of, trained
from stepfast.frameworks.torch.adapter import TorchFramework
from stepfast.memory.slot import Slot
from stepfast.restore.restore import restore
from stepfast.store.run_directory import RunDirectory

LEAVES = 88
LEAF_NUMBERS = 1 << 20
SAVES = 5
RESTORES = 3
"""Of all repetitions the quickest counts, for us and for the yardstick alike: it is the least disturbed one."""

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
    best = {key: min(values) for key, values in found.items()}
    return found | {
        "bytes": [size],
        "copy": [best["k0_s"] / best["shared_s"]],
        "copy_plain": [best["k0_s"] / best["plain_s"]],
        "boundary": [best["boundary_s"] / best["shared_s"]],
        "durable": [best["durable_s"] / best["torch_save_s"]],
    }


def _restores(path: str, work: Path) -> Measured:
    found: Measured = {k: [] for k in ("restore_s", "load_s", "put_s", "restore_cold_s", "load_cold_s")}
    run = RunDirectory.open(path)
    ours_files = [entry for entry in run.checkpoint_path(run.steps()[-1]).iterdir() if entry.is_file()]
    theirs_file = work / "theirs.pt"

    def ours(key: str) -> None:
        model = Leaves(LEAVES, LEAF_NUMBERS, empty=True)
        framework = TorchFramework(
            model=model, optimizer=torch.optim.AdamW(model.parameters()), scheduler=None, scaler=None, extra=None
        )
        found[key].append(seconds(lambda: restore(run, framework, lambda *_: None)))

    def theirs(key: str) -> None:
        model = Leaves(LEAVES, LEAF_NUMBERS, empty=True)
        optimizer = torch.optim.AdamW(model.parameters())
        loaded: dict[str, dict[str, object]] = {}
        spent = seconds(lambda: loaded.update(torch.load(theirs_file, mmap=False, weights_only=True)))
        found[key].append(spent)
        if key == "load_s":
            found["put_s"].append(
                spent
                + seconds(
                    lambda: (
                        model.load_state_dict(loaded["model"]),
                        optimizer.load_state_dict(loaded["optimizer"]),
                    )
                )
            )

    for file in [*ours_files, theirs_file]:
        _read_through(file)
    for number in range(RESTORES + 1):
        turn = [(ours, "restore_s"), (theirs, "load_s")]
        random.shuffle(turn)
        for action, key in turn:
            action(key)
        if number == 0:
            for values in found.values():
                values.clear()
    cold = [(ours, "restore_cold_s", ours_files), (theirs, "load_cold_s", [theirs_file])]
    random.shuffle(cold)
    for action, key, files in cold:
        for file in files:
            _forget(file)
        action(key)
    theirs_file.unlink()
    best = {key: min(values) for key, values in found.items()}
    return found | {
        "restore": [best["restore_s"] / best["load_s"]],
        "restore_put": [best["restore_s"] / best["put_s"]],
        "restore_cold": [best["restore_cold_s"] / best["load_cold_s"]],
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


def _read_through(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(8 << 20):
            pass


def _forget(path: Path) -> None:
    """Out of the page cache; it is clean, since it was synced."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
