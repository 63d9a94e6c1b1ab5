"""What runs inside loader workers: seeding before each batch, and nothing on Ctrl-C.

A batch's indices travel to a worker by a queue. They travel as `Sent`, and unpickling a `Sent` seeds every
generator of the worker from (run, epoch, batch) before it gives the indices back. So the draws of a batch
depend neither on the worker that makes it nor on the batches made before, and the dataset needs no wrapper.
"""

from __future__ import annotations

import random
import signal
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import xxhash
from torch.utils.data import get_worker_info

from stepfast.frameworks.torch import generators


class Sent:
    """Indices on their way to a worker."""

    __slots__ = ("_batch", "_epoch", "_indices", "_seed")

    def __init__(self, indices: object, *, seed: int, epoch: int, batch: int) -> None:
        self._indices = indices
        self._seed = seed
        self._epoch = epoch
        self._batch = batch

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _arrive, (self._indices, self._seed, self._epoch, self._batch)


class WorkerStart:
    """A `worker_init_fn`: the user's own, after what we need.

    It travels in one pickle with the loader's collate function, so under spawn it holds the one that is used.
    """

    def __init__(self, user: Callable[[int], None] | None, collate: object) -> None:
        self._user = user
        self._collate = collate

    def __call__(self, worker: int) -> None:
        if threading.current_thread() is threading.main_thread():
            # The trainer alone decides what Ctrl-C means; a forked worker also shares its wake-up pipe.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.set_wakeup_fd(-1)
        _collate.clear()
        _collate.append(self._collate)
        if self._user is not None:
            self._user(worker)


_collate: list[object] = []
"""This worker's collate function."""


def _arrive(indices: object, seed: int, epoch: int, batch: int) -> object:
    info = get_worker_info()
    if info is not None:
        stream = struct.pack("<QqQ", seed & (2**64 - 1), epoch, batch)
        seed_globals(stream)
        roots = {"dataset": info.dataset, "collate_fn": _collate[0] if _collate else None}
        for name, generator in generators.search(roots)[0].items():
            seed_generator(generator, _bits(stream, name))
    return indices


def seed_globals(stream: bytes) -> None:
    """The global generators of Python, NumPy and torch's CPU, each from its own 128 bits of the stream."""
    # Not torch.manual_seed: it also queues a call for every CUDA device, batch after batch.
    torch.default_generator.manual_seed(_bits(stream, "torch") >> 64)
    random.seed(_bits(stream, "python"))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(_words(_bits(stream, "numpy")))


def seed_generator(generator: Any, bits: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(bits >> 64)
    elif isinstance(generator, random.Random):
        generator.seed(bits)
    elif hasattr(generator, "bit_generator"):
        source = generator.bit_generator
        source.state = type(source)(bits).state
    else:
        generator.seed(_words(bits))


def _bits(stream: bytes, name: str) -> int:
    return int(xxhash.xxh3_128_intdigest(stream + name.encode()))


def _words(bits: int) -> list[int]:
    return [(bits >> shift) & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
