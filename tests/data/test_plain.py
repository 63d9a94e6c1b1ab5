"""IterableSource: any iterable, drawn again up to the boundary."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from stepfast.core.errors import StateMismatch, UsageError
from stepfast.data.plain import IterableSource, length_of
from stepfast.frameworks.torch import rng
from stepfast.frameworks.torch.generators import FoundGenerators
from tests.frameworks import loader_cases as cases
from tests.frameworks.loader_cases import Record, run, run_resumed, run_unmodified, seed_all


class Shuffled:
    """The order from the global generators, noise from its own."""

    def __init__(self) -> None:
        self.noise = np.random.default_rng(1)
        self.made = 0

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[Any]:
        order = random.sample(range(7), 7)
        for index in order:
            self.made += 1
            yield {"index": index, "x": torch.rand(2), "noise": self.noise.random()}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        for index in range(12):
            if info is None or index % info.num_workers == info.id:
                yield {"index": index, "x": torch.rand(2)}


class OwnIteration(DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch, torch.rand(())


MADE: dict[str, Any] = {
    "list": lambda: [torch.tensor(index) for index in range(5)],
    "object": Shuffled,
    "own iteration": lambda: OwnIteration(TensorDataset(torch.arange(9)), batch_size=2, shuffle=True),
    "stream": lambda: DataLoader(Stream(), batch_size=2),
    "stream, workers": lambda: DataLoader(Stream(), batch_size=2, num_workers=2),
}


def source_of(data: Any) -> IterableSource:
    return IterableSource(data, rng=rng, generators=FoundGenerators({"data": data}), length=length_of(data))


@pytest.mark.parametrize("name", MADE)
def test_begins_as_the_iterable_does_and_resumes(name: str) -> None:
    seed_all(1)
    expected = run_unmodified(MADE[name]())
    seed_all(1)
    source = source_of(MADE[name]())
    reference = run(source)
    source.close()
    assert reference.since(0, 0) == expected.since(0, 0)
    for epoch, batch in cases.places(reference):
        seed_all(100 + batch)
        source = source_of(MADE[name]())
        resumed = run_resumed(source, reference, epoch, batch)
        source.close()
        assert resumed.since(epoch, batch) == reference.since(epoch, batch)


def test_persistent_workers_draw_their_seed_once() -> None:
    """The draws inside the workers are lost; those of the loop are not."""

    def make() -> IterableSource:
        return source_of(DataLoader(Stream(), batch_size=2, num_workers=1, persistent_workers=True))

    seed_all(1)
    source = make()
    reference = run(source)
    source.close()
    for epoch, batch in ((0, 2), (1, 0), (1, 2)):
        seed_all(2)
        source = make()
        resumed: Record = run_resumed(source, reference, epoch, batch)
        source.close()
        assert resumed.since(epoch, batch)[1:] == reference.since(epoch, batch)[1:]
        assert any("persistent" in note for note in source.notes())


def test_fast_forward_is_named() -> None:
    source = source_of(Shuffled())
    assert "Shuffled cannot skip" in source.notes()[0]
    assert "data.noise" in source.notes()[1]


def test_facts_and_length() -> None:
    assert source_of([1, 2]).facts() == {"data": "list", "length": 2}
    loader = MADE["own iteration"]()
    assert source_of(loader).facts() == {
        "data": "OwnIteration",
        "length": 5,
        "batch_size": 2,
        "drop_last": False,
    }
    assert source_of(MADE["stream"]()).length is None


@pytest.mark.parametrize("data", [iter([1]), (x for x in range(3)), map(str, [1])])
def test_an_iterator_is_refused(data: Any) -> None:
    with pytest.raises(UsageError, match="can be used once") as error:
        source_of(data)
    assert "data=None" in error.value.hint


def test_what_is_no_iterable_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be iterated"):
        IterableSource(3, rng=rng, length=None)  # type: ignore[arg-type]


def test_data_that_ends_early_is_an_error() -> None:
    reference = run(source_of(Unsized(4)))
    stored = cases.stored_at(reference, 0, 3)
    source = source_of(Unsized(2))
    with pytest.raises(StateMismatch, match="ends after 2 batches"):
        next(source.resume(0, 3, stored["source"], stored["rng"]))


class Unsized:
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def test_other_batching_in_the_middle_of_an_epoch_is_an_error() -> None:
    def make(batch_size: int) -> IterableSource:
        return source_of(OwnIteration(TensorDataset(torch.arange(9)), batch_size=batch_size))

    reference = run(make(2))
    stored = cases.stored_at(reference, 1, 2)
    with pytest.raises(StateMismatch, match=r"data.batch_size was 2 .* is 3 now") as error:
        make(3).resume(1, 2, stored["source"], stored["rng"])
    assert "epoch's start only" in error.value.hint
    stored = cases.stored_at(reference, 1, 0)
    assert len(list(make(3).resume(1, 0, stored["source"], stored["rng"]))) == 3


def test_data_without_a_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="a list of length 0"):
        source_of([])


def test_a_generator_that_is_made_later_is_named() -> None:
    data = Shuffled()
    data.noise = None  # type: ignore[assignment]
    source = source_of(data)
    assert "data.noise" not in " ".join(source.notes())
    data.noise = np.random.default_rng(1)
    next(source.begin(0))
    (note,) = source.new_notes()
    assert "data.noise" in note
    assert source.new_notes() == []
