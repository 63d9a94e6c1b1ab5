"""Samplers that change from epoch to epoch: the same order after a resume, or an error; never another order."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from stepfast import Run
from stepfast.core import codec
from stepfast.core.errors import StateMismatch
from stepfast.frameworks.torch import rng
from stepfast.frameworks.torch.loader import LoaderSource
from stepfast.frameworks.torch.order import PlannedOrder
from stepfast.frameworks.torch.sampler_state import SamplerState
from tests.frameworks.loader_cases import seed_all

COUNT, EPOCHS = 22, 3


class Counting(Sampler[int]):
    """Its order is that of its own count of epochs."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist()
        self.epoch += 1
        return iter(order)


class CountingLate(Counting):
    """Counts when the epoch's last index was drawn."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(COUNT, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.epoch += 1


class InPlace(Sampler[int]):
    """Shuffles what it holds, with a stream that depends on nothing but the epoch's number."""

    def __init__(self, indices: Any) -> None:
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        if isinstance(self.indices, list):
            random.Random(1).shuffle(self.indices)
        elif isinstance(self.indices, tuple):
            self.indices = self.indices[3:] + self.indices[:3]
        else:
            self.indices[:] = self.indices[
                torch.randperm(len(self.indices), generator=torch.Generator().manual_seed(1))
            ]
        yield from (int(index) for index in self.indices)


class Groups(Sampler[list[int]]):
    """A batch sampler with a state, over a sampler with a state."""

    def __init__(self) -> None:
        self.sampler = Counting()
        self.batch_size = 4
        self.turn = 0

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        self.turn += 1
        for batch in BatchSampler(self.sampler, self.batch_size, False):
            yield batch[:: -1 if self.turn % 2 else 1]


class Hidden(Counting):
    """Its count is where no walk looks."""

    def __init__(self) -> None:
        self.hidden = {"epoch": 0}

    @property
    def epoch(self) -> int:
        return self.hidden["epoch"]

    @epoch.setter
    def epoch(self, value: int) -> None:
        self.hidden["epoch"] = value

    seed = 0


class WithMethods(Hidden):
    def state_dict(self) -> dict[str, int]:
        return self.hidden

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.hidden.update(state)


def loader(sampler: Any, count: int = COUNT, **arguments: Any) -> DataLoader[Any]:
    dataset = TensorDataset(torch.arange(count))
    if isinstance(sampler, Groups):
        return DataLoader(dataset, batch_sampler=sampler, **arguments)
    return DataLoader(dataset, batch_size=4, sampler=sampler, **arguments)


MADE: dict[str, Callable[[], Any]] = {
    "counter": Counting,
    "counted at the end": CountingLate,
    "list": lambda: InPlace(list(range(COUNT))),
    "tuple": lambda: InPlace(tuple(range(COUNT))),
    "array": lambda: InPlace(np.arange(COUNT)),
    "tensor": lambda: InPlace(torch.arange(COUNT)),
    "batch sampler": Groups,
    "state_dict": WithMethods,
}


def walk(source: LoaderSource, batches: Iterator[Any], at: tuple[int, int]) -> Iterator[tuple[tuple[int, int], Any]]:
    """Each boundary with what is stored there, then the batch after it; to the end of the run."""
    epoch, batch = at
    while True:
        stored = source.state(), rng.capture()
        try:
            (indices,) = next(batches)
        except StopIteration:
            epoch, batch = epoch + 1, 0
            if epoch == EPOCHS:
                return
            batches = source.begin(epoch)
            continue
        yield (epoch, batch), (stored, indices.tolist())
        batch += 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", MADE)
def test_a_sampler_with_a_state_resumes_in_its_order(name: str, workers: int) -> None:
    seed_all(1)
    expected = [[batch[0].tolist() for batch in one] for one in [loader(MADE[name](), num_workers=workers)] * EPOCHS]
    seed_all(1)
    source = LoaderSource(loader(MADE[name](), num_workers=workers))
    reference = dict(walk(source, source.begin(0), (0, 0)))
    source.close()
    assert [[seen for at, (_, seen) in reference.items() if at[0] == epoch] for epoch in range(EPOCHS)] == expected
    assert expected[0] != expected[1]
    for at in [(0, 0), (0, 2), (1, 0), (1, 1), (1, 5), (2, 3)]:
        (state, stored_rng), _ = reference[at]
        for is_restored in (False, True):
            seed_all(100)
            source = LoaderSource(loader(MADE[name](), num_workers=workers))
            if is_restored:
                source.restore(state)
                assert name in ("array", "tensor") or source.state() == state
            resumed = dict(walk(source, source.resume(*at, state, stored_rng), at))
            source.close()
            assert [s for _, s in resumed.values()] == [s for place, (_, s) in reference.items() if place >= at]


def test_another_number_of_workers() -> None:
    """They run ahead by another number of batches, and over the epoch's end."""
    source = LoaderSource(loader(CountingLate(), num_workers=2, prefetch_factor=4))
    reference = dict(walk(source, source.begin(0), (0, 0)))
    source.close()
    for at in [(0, 1), (1, 2)]:
        (state, stored_rng), _ = reference[at]
        source = LoaderSource(loader(CountingLate(), num_workers=1))
        resumed = dict(walk(source, source.resume(*at, state, stored_rng), at))
        source.close()
        assert [s for _, s in resumed.values()] == [s for place, (_, s) in reference.items() if place >= at]


@pytest.mark.parametrize("workers", [0, 1])
def test_another_order_is_an_error(workers: int) -> None:
    source = LoaderSource(loader(Hidden(), num_workers=workers))
    reference = dict(walk(source, source.begin(0), (0, 0)))
    source.close()
    (state, stored_rng), _ = reference[1, 2]
    source = LoaderSource(loader(Hidden(), num_workers=workers))
    with pytest.raises(StateMismatch, match="Hidden gives another order: the first 2 batches of epoch 2") as error:
        next(source.resume(1, 2, state, stored_rng))
    source.close()
    assert "give Hidden state_dict" in error.value.hint
    assert "set_epoch" in error.value.hint


def test_the_digest_is_that_of_the_batches_handed_over() -> None:
    """The same at the same boundary, whatever workers have been sent."""
    digests = []
    for arguments in ({}, {"num_workers": 1}, {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True}):
        source = LoaderSource(loader(Counting(), **arguments))
        batches, seen = source.begin(0), []
        for _ in range(4):
            next(batches)
            seen.append(source.state()["order"])
        source.close()
        digests.append(seen)
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[0])) == 4


def test_digests_of_indices_of_any_kind() -> None:
    def digest(*batches: Any) -> str:
        order = PlannedOrder(list(batches))
        for _ in iter(order):
            order.hand()
        return order.handed

    kinds: list[list[Any]] = [
        [[1, 2], [3]], [[1], [2, 3]], [[2, 1], [3]], [1, 2], [2, 1], [["a", "b"]], [["b", "a"]], [[(1, 2)]], [[(2, 1)]],
        [torch.tensor([1, 2])], [torch.tensor([2, 1])], [list(range(5000))], [list(range(5000))[::-1]], [[2**70]],
    ]  # fmt: skip
    assert len({digest(*batches) for batches in kinds}) == len(kinds)
    assert digest([1, 2]) == digest(list(np.array([1, 2]))) == digest((1, 2))


def test_a_setting_that_the_script_changes_stays_changed() -> None:
    before = Counting(seed=0)
    samplers = SamplerState(before)
    iter(before)
    after = Counting(seed=50)
    SamplerState(after).restore(samplers.capture())
    assert (after.seed, after.epoch) == (50, 1)


def test_a_value_that_returns_is_still_put_back() -> None:
    before = Counting()
    samplers = SamplerState(before)
    for before.epoch in (1, 0):
        stored = samplers.capture()
    after = Counting()
    fresh = SamplerState(after)
    after.epoch = 7
    fresh.restore(stored)
    assert after.epoch == 0
    assert fresh.capture() == stored


def test_lists_are_put_back_in_place_and_stored_as_they_were() -> None:
    sampler = InPlace(list(range(1000)))
    shared, samplers = sampler.indices, SamplerState(sampler)
    next(iter(sampler))
    stored, shuffled = samplers.capture(), list(shared)
    next(iter(sampler))
    samplers.restore(stored)
    assert sampler.indices is shared
    assert shared == shuffled


def test_a_change_in_one_place_of_a_long_list_is_seen_at_the_epochs_start() -> None:
    sampler = InPlace(list(range(1000)))
    samplers = SamplerState(sampler)
    sampler.indices[7] = 8
    assert samplers.capture()["order"]["state"] == {}  # type: ignore[index]
    assert samplers.capture(whole=True)["order"]["state"]["indices"][1][7] == 8  # type: ignore[index]


def test_stock_samplers_and_datasets_are_left_alone() -> None:
    assert (
        SamplerState(DataLoader(TensorDataset(torch.arange(9)), batch_size=2, shuffle=True).batch_sampler).capture()
        == {}
    )
    distributed: DistributedSampler[Any] = DistributedSampler(TensorDataset(torch.arange(9)), num_replicas=1, rank=0)
    samplers = SamplerState(distributed)
    distributed.set_epoch(3)
    assert samplers.capture() == {"order": {"class": "DistributedSampler", "state": {"epoch": ("value", 3)}}}
    sampler = Counting()
    sampler.dataset = TensorDataset(torch.arange(3))  # type: ignore[attr-defined]
    sampler.weights = [0.5, 1]  # type: ignore[attr-defined]
    samplers = SamplerState(sampler)
    sampler.dataset = sampler.weights = None  # type: ignore[attr-defined]
    json.dumps(codec.encode(samplers.capture(), "", codec.NoForeign()))


@pytest.mark.parametrize("count", [22, 200], ids=["short", "long"])
@pytest.mark.parametrize("stop", [3, 6, 8])
def test_a_run_with_a_sampler_that_shuffles_in_place(tmp_path: Path, count: int, stop: int) -> None:
    def train(path: Path, steps: int) -> list[list[int]]:
        torch.manual_seed(1)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = Run(
            path,
            model=model,
            optimizer=optimizer,
            data=DataLoader(
                TensorDataset(torch.arange(count)), batch_size=count // 5, sampler=InPlace(list(range(count)))
            ),
            steps=steps,
        )
        seen = []
        for (indices,) in run:
            seen.append(indices.tolist())
            model(torch.ones(1)).sum().backward()
            optimizer.step()
        run.close()
        return seen

    whole = train(tmp_path / "whole", 14)
    assert train(tmp_path / "parts", stop) == whole[:stop]
    assert train(tmp_path / "parts", 14) == whole[stop:]
