"""Loaders of many kinds, and one small loop over them, for the tests of the sources."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)

from stepfast.core import codec
from stepfast.frameworks.torch import rng
from stepfast.frameworks.torch.batch_digest import batch_digest

SAMPLES = 22
EPOCHS = 3


class Samples(Dataset[dict[str, Any]]):
    """Counts which samples were opened, also in workers."""

    def __init__(
        self, *, augment: bool = False, own: bool = False, own_torch: bool = False, lazy: bool = False
    ) -> None:
        self.opened = torch.zeros(SAMPLES, dtype=torch.int64).share_memory_()
        self.augment = augment
        self.lazy = lazy
        self.transforms: list[Any] = [Jitter()] if own else []
        self.generator = torch.Generator().manual_seed(5) if own_torch else None
        self.old_style = np.random.RandomState(6) if own else None
        self.late: random.Random | None = None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.opened[index] += 1
        sample: dict[str, Any] = {"index": index, "x": torch.full((3,), float(index))}
        if self.augment:
            sample["draws"] = torch.tensor([torch.rand(()).item(), random.random(), np.random.standard_normal()])
        if self.generator is not None:
            sample["torch"] = torch.rand((), generator=self.generator)
        if self.old_style is not None:
            sample["own"] = torch.tensor([self.old_style.standard_normal(), *(t() for t in self.transforms)])
        if self.lazy:
            self.late = self.late or random.Random(9)
            sample["late"] = self.late.random()
        return sample


class Jitter:
    __slots__ = ("modern", "plain")

    def __init__(self) -> None:
        self.modern = np.random.default_rng(3)
        self.plain = random.Random(4)

    def __call__(self) -> float:
        return float(self.modern.random()) + self.plain.gauss(0, 1)


class DrawsAlways(Sampler[int]):
    """Draws each index from a global generator when it is asked for."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        for _ in range(SAMPLES):
            yield random.randrange(SAMPLES)


class DrawsWhenMade(Sampler[int]):
    """Draws the order in `__iter__`, before the loader draws its base seed."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SAMPLES).tolist())


class Unsized(Sampler[int]):
    def __init__(self, count: int = 9) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.count).tolist()


def seeded(seed: int = 11) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def collate_with(generator: np.random.Generator) -> Callable[[list[Any]], Any]:
    def collate(samples: list[Any]) -> Any:
        return {"all": torch.utils.data.default_collate(samples), "noise": generator.random()}

    return collate


Made = tuple[DataLoader[Any], Samples]


def _loader(dataset: Samples, data: Any = None, **arguments: Any) -> Made:
    return DataLoader(dataset if data is None else data, **arguments), dataset


def _shared_generator(**arguments: Any) -> Made:
    dataset = Samples(own=True, own_torch=True)
    return _loader(dataset, batch_size=4, shuffle=True, generator=dataset.generator, **arguments)


CASES: dict[str, Callable[..., Made]] = {
    "shuffle, last batch short": lambda **k: _loader(Samples(), batch_size=4, shuffle=True, **k),
    "sequential, drop_last": lambda **k: _loader(Samples(), batch_size=4, drop_last=True, **k),
    "augmented": lambda **k: _loader(Samples(augment=True), batch_size=4, shuffle=True, **k),
    "own generators": lambda **k: _loader(
        Samples(own=True, own_torch=True, augment=True), batch_size=4, shuffle=True, **k
    ),
    # A torch.Generator in a dataset cannot be sent to a spawned worker, with any loader.
    "own generators, not torch": lambda **k: _loader(Samples(own=True, augment=True), batch_size=4, shuffle=True, **k),
    "late generator": lambda **k: _loader(Samples(lazy=True), batch_size=4, shuffle=True, **k),
    "loader generator": lambda **k: _loader(Samples(), batch_size=4, shuffle=True, generator=seeded(), **k),
    "shared generator": _shared_generator,
    "replacement": lambda **k: _loader(
        Samples(augment=True),
        batch_size=4,
        sampler=RandomSampler(range(SAMPLES), True, 70, generator=seeded()),
        **k,
    ),
    "weighted": lambda **k: _loader(
        Samples(augment=True), batch_size=4, sampler=WeightedRandomSampler(list(range(1, 23)), 18), **k
    ),
    "chosen": lambda **k: _loader(Samples(), batch_size=4, sampler=SubsetRandomSampler(range(3, 19)), **k),
    "batch_sampler": lambda **k: _loader(
        Samples(augment=True), batch_sampler=BatchSampler(RandomSampler(range(SAMPLES)), 5, False), **k
    ),
    "no batches": lambda **k: _loader(Samples(augment=True), batch_size=None, shuffle=True, **k),
    "list as sampler": lambda **k: _loader(Samples(), batch_size=4, sampler=list(range(4, 20)), **k),
    # Right under the loader: a BatchSampler makes its sampler's iterator with the first batch only.
    "draws when made": lambda **k: _loader(Samples(augment=True), batch_size=None, sampler=DrawsWhenMade(), **k),
    "draws always": lambda **k: _loader(Samples(augment=True), batch_size=4, sampler=DrawsAlways(), **k),
    "unsized": lambda **k: _loader(Samples(), batch_size=2, sampler=Unsized(), **k),
}


def subset(**arguments: Any) -> Made:
    dataset = Samples(augment=True)
    return _loader(dataset, random_split(dataset, [16, 6], seeded(1))[0], batch_size=4, shuffle=True, **arguments)


def collating(**arguments: Any) -> Made:
    return _loader(
        Samples(), batch_size=4, shuffle=True, collate_fn=collate_with(np.random.default_rng(8)), **arguments
    )


CASES |= {"subset": subset, "collate draws": collating}


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def draw() -> None:
    """What a step of the loop draws: dropout, a random crop, one half of a pair of normal numbers."""
    torch.rand(3)
    random.random()
    np.random.standard_normal()


@dataclass
class Record:
    """What a loop saw, by (epoch, batch); `ends` holds the generators at the end of each epoch's tail."""

    batches: dict[tuple[int, int], bytes] = field(default_factory=dict)
    rngs: dict[tuple[int, int], str] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    boundaries: dict[tuple[int, int], str] = field(default_factory=dict)
    """What was stored: the text of the source's state and of the global generators."""

    def since(self, epoch: int, batch: int) -> tuple[dict[Any, Any], dict[Any, Any], dict[int, str]]:
        return (
            {k: v for k, v in self.batches.items() if k >= (epoch, batch)},
            {k: v for k, v in self.rngs.items() if k >= (epoch, batch)},
            {k: v for k, v in self.ends.items() if k >= epoch},
        )


def follow(record: Record, batches: Iterator[Any], epoch: int, batch: int, source: Any = None) -> None:
    """One epoch of the loop, from `batch` on, with its tail."""
    while True:
        if source is not None:
            stored = {"source": source.state(), "rng": rng.capture()}
            record.boundaries[epoch, batch] = json.dumps(codec.encode(stored, "", codec.NoForeign()))
        try:
            value = next(batches)
        except StopIteration:
            break
        record.batches[epoch, batch] = batch_digest(value)
        record.rngs[epoch, batch] = rng.digest(rng.capture())
        draw()
        batch += 1
    record.boundaries.pop((epoch, batch), None)
    draw()
    record.ends[epoch] = rng.digest(rng.capture())


def run(source: Any, epochs: int = EPOCHS) -> Record:
    record = Record()
    for epoch in range(epochs):
        follow(record, source.begin(epoch), epoch, 0, source)
    return record


def run_unmodified(loader: Any, epochs: int = EPOCHS) -> Record:
    record = Record()
    for epoch in range(epochs):
        follow(record, iter(loader), epoch, 0)
    return record


def stored_at(reference: Record, epoch: int, batch: int) -> Any:
    return codec.decode(json.loads(reference.boundaries[epoch, batch]), codec.NoForeign())


def run_resumed(source: Any, reference: Record, epoch: int, batch: int, epochs: int = EPOCHS) -> Record:
    """From the boundary on, with whatever the global generators hold now."""
    stored = stored_at(reference, epoch, batch)
    record = Record()
    follow(record, source.resume(epoch, batch, stored["source"], stored["rng"]), epoch, batch)
    for later in range(epoch + 1, epochs):
        follow(record, source.begin(later), later, 0)
    return record


def places(reference: Record) -> list[tuple[int, int]]:
    """The first two, the middle and the last batch of the first two epochs."""
    found: list[tuple[int, int]] = []
    for epoch in range(2):
        count = sum(1 for at in reference.batches if at[0] == epoch)
        found += [(epoch, batch) for batch in sorted({0, 1, count // 2, count - 1})]
    return found
