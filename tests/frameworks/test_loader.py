"""LoaderSource: the same batches as the unmodified loader, and the same again after a resume at any batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, random_split

from stepfast.core.errors import StateMismatch, UsageError
from stepfast.frameworks.torch import rng
from stepfast.frameworks.torch.loader import LoaderSource, is_plain_loader
from tests.frameworks import loader_cases as cases
from tests.frameworks.loader_cases import CASES, Record, Samples, run, run_resumed, run_unmodified, seed_all

DRAW_BETWEEN_BATCHES = {"draws always"}
"""Their order leaves the unmodified loader's after the first batch, by design."""


def make(name: str, **arguments: Any) -> tuple[LoaderSource, Samples]:
    loader, dataset = CASES[name](**arguments)
    return LoaderSource(loader), dataset


def undisturbed(name: str, **arguments: Any) -> Record:
    seed_all(1)
    source, _ = make(name, **arguments)
    record = run(source)
    source.close()
    return record


def check_resume(reference: Record, name: str, epoch: int, batch: int, **arguments: Any) -> None:
    seed_all(1000 + 10 * epoch + batch)
    source, dataset = make(name, **arguments)
    stored = cases.stored_at(reference, epoch, batch)
    record = Record()
    cases.follow(record, source.resume(epoch, batch, stored["source"], stored["rng"]), epoch, batch)
    opened = int(dataset.opened.sum())
    for later in range(epoch + 1, cases.EPOCHS):
        cases.follow(record, source.begin(later), later, 0)
    source.close()
    assert record.since(epoch, batch) == reference.since(epoch, batch)
    assert opened == samples_from(name, epoch, batch)


def samples_from(name: str, epoch: int, batch: int) -> int:
    """How many samples the rest of that epoch opens, counted in an undisturbed run."""
    seed_all(1)
    source, dataset = make(name)
    for earlier in range(epoch):
        list(source.begin(earlier))
    batches = source.begin(epoch)
    for _ in range(batch):
        next(batches)
    before = int(dataset.opened.sum())
    list(batches)
    return int(dataset.opened.sum()) - before


@pytest.mark.parametrize("name", sorted(CASES.keys() - DRAW_BETWEEN_BATCHES))
def test_equals_the_unmodified_loader(name: str) -> None:
    seed_all(1)
    expected = run_unmodified(CASES[name]()[0])
    assert undisturbed(name).since(0, 0) == expected.since(0, 0)
    assert expected.batches


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"late generator"}))
def test_resume_without_workers(name: str) -> None:
    reference = undisturbed(name)
    for epoch, batch in cases.places(reference):
        check_resume(reference, name, epoch, batch)


@pytest.mark.parametrize("name", ["shuffle, last batch short", "replacement", "draws when made", "batch_sampler"])
@pytest.mark.parametrize("persistent", [False, True], ids=["each epoch", "persistent"])
def test_workers_equal_the_unmodified_loader(name: str, persistent: bool) -> None:
    """Order and global generators are the script's own; what is drawn inside workers is not."""
    arguments = {"num_workers": 2, "persistent_workers": persistent}

    def indices_and_rng(batches: Any) -> list[tuple[Any, str]]:
        seen = []
        for batch in batches:
            seen.append((torch.as_tensor(batch["index"]).tolist(), rng.digest(rng.capture())))
            cases.draw()
        return seen

    seed_all(1)
    loader = CASES[name](**arguments)[0]
    expected = [indices_and_rng(loader) for _ in range(3)]
    del loader
    seed_all(1)
    source, _ = make(name, **arguments)
    assert [indices_and_rng(source.begin(epoch)) for epoch in range(3)] == expected
    source.close()


@pytest.mark.parametrize("name", ["own generators", "no batches", "draws when made", "draws always", "collate draws"])
@pytest.mark.parametrize("persistent", [False, True], ids=["each epoch", "persistent"])
def test_resume_with_workers(name: str, persistent: bool) -> None:
    arguments = {"num_workers": 2, "persistent_workers": persistent}
    reference = undisturbed(name, **arguments)
    last = sum(1 for at in reference.batches if at[0] == 1) - 1
    for epoch, batch in [(0, 0), (0, 2), (1, 0), (1, 1), (1, last)]:
        check_resume(reference, name, epoch, batch, **arguments)


@pytest.mark.parametrize("name", ["loader generator", "shared generator", "replacement", "weighted", "subset"])
def test_resume_with_persistent_workers_and_generators(name: str) -> None:
    arguments = {"num_workers": 2, "persistent_workers": True}
    reference = undisturbed(name, **arguments)
    for epoch, batch in [(0, 1), (1, 2)]:
        check_resume(reference, name, epoch, batch, **arguments)


@pytest.fixture(scope="module")
def _resource_tracker() -> None:
    """Python starts it with the first spawned process and keeps it; here it is there before the test."""
    resource_tracker.ensure_running()


@pytest.mark.slow
@pytest.mark.usefixtures("_resource_tracker")
def test_spawned_workers_draw_what_forked_ones_draw() -> None:
    """Whatever their number."""
    name = "own generators, not torch"
    forked = undisturbed(name, num_workers=2)
    arguments = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}
    seed_all(1)
    source, _ = make(name, **arguments)
    spawned = run(source, epochs=2)
    source.close()
    first = {at for at in spawned.batches if at[0] == 0}
    assert {at: spawned.batches[at] for at in first} == {at: forked.batches[at] for at in first}
    seed_all(2)
    source, _ = make(name, **arguments)
    resumed = run_resumed(source, spawned, 1, 3, epochs=2)
    source.close()
    assert resumed.since(1, 3) == spawned.since(1, 3)


def test_a_generator_made_by_the_first_sample_is_an_error_at_resume() -> None:
    reference = undisturbed("late generator")
    source, _ = make("late generator")
    for epoch, batch in ((0, 1), (1, 0)):
        stored = cases.stored_at(reference, epoch, batch)
        with pytest.raises(StateMismatch, match=r"dataset\.late"):
            source.resume(epoch, batch, stored["source"], stored["rng"])
    check_resume(reference, "late generator", 0, 0)


def test_each_batch_and_each_epoch_has_its_own_draws() -> None:
    seed_all(1)
    source, _ = make("augmented", num_workers=2)
    drawn = [batch["draws"] for epoch in range(2) for batch in source.begin(epoch)]
    source.close()
    values = torch.cat(drawn).flatten().tolist()
    assert len(set(values)) == len(values) == 2 * cases.SAMPLES * 3


def test_a_sampler_that_draws_between_batches_is_named() -> None:
    seed_all(1)
    source, _ = make("draws always")
    first = source.begin(0)
    next(first)
    assert not [note for note in source.notes() if "DrawsAlways" in note]
    assert source.new_notes() == []
    next(first)
    (note,) = source.new_notes()
    assert note.startswith("DrawsAlways draws from a global generator")
    assert source.new_notes() == []
    assert note in source.notes()


def test_a_generator_that_is_made_later_is_named() -> None:
    source, _ = make("late generator")
    assert source.notes() == []
    batches = source.begin(0)
    source.state(), next(batches), source.state()
    (note,) = source.new_notes()
    assert "dataset.late" in note
    assert source.new_notes() == []


def test_found_generators_are_named() -> None:
    source, _ = make("own generators")
    (note,) = source.notes()
    for name in (
        "dataset.generator",
        "dataset.old_style",
        "dataset.transforms[0].modern",
        "dataset.transforms[0].plain",
    ):
        assert name in note
    workers = make("own generators", num_workers=1)[0].notes()
    assert "stream per batch" in workers[0]


def test_a_generator_that_is_gone_is_an_error() -> None:
    reference = undisturbed("own generators")
    _, dataset = make("own generators")
    dataset.transforms.clear()
    source = LoaderSource(DataLoader(dataset, batch_size=4, shuffle=True))
    stored = cases.stored_at(reference, 0, 2)
    with pytest.raises(StateMismatch, match=r"dataset\.transforms\[0\]"):
        source.resume(0, 2, stored["source"], stored["rng"])


def test_a_sampler_that_ends_early_is_an_error() -> None:
    reference = undisturbed("unsized")
    source = LoaderSource(DataLoader(Samples(), batch_size=2, sampler=cases.Unsized(4)))
    stored = cases.stored_at(reference, 0, 4)
    with pytest.raises(StateMismatch, match="ends after 2 batches"):
        next(source.resume(0, 4, stored["source"], stored["rng"]))


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"batch_size": 2}, "data.batch_size was 4"), ({"drop_last": True}, "data.drop_last was False")],
)
def test_other_batching_in_the_middle_of_an_epoch_is_an_error(changed: dict[str, Any], name: str) -> None:
    reference = undisturbed("shuffle, last batch short")
    arguments = {"batch_size": 4, "shuffle": True} | changed
    stored = cases.stored_at(reference, 1, 2)
    source = LoaderSource(DataLoader(Samples(), **arguments))
    source.restore(stored["source"])
    with pytest.raises(StateMismatch, match=name) as error:
        source.resume(1, 2, stored["source"], stored["rng"])
    assert "epoch's start only" in error.value.hint
    stored = cases.stored_at(reference, 1, 0)
    source = LoaderSource(DataLoader(Samples(), **arguments))
    assert len(list(source.resume(1, 0, stored["source"], stored["rng"]))) == source.length


def test_a_shorter_dataset_in_the_middle_of_an_epoch_is_an_error() -> None:
    reference = undisturbed("shuffle, last batch short")
    source = LoaderSource(DataLoader(TensorDataset(torch.zeros(8, 1)), batch_size=4, shuffle=True))
    stored = cases.stored_at(reference, 0, 4)
    with pytest.raises(StateMismatch, match=r"data.length was 6 .* is 2 now"):
        source.resume(0, 4, stored["source"], stored["rng"])


@pytest.mark.parametrize("arguments", [{"batch_size": 4}, {"batch_size": 40, "drop_last": True}])
def test_data_without_a_batch_is_refused(arguments: dict[str, Any]) -> None:
    dataset = TensorDataset(torch.zeros(22 if arguments.get("drop_last") else 0, 1))
    with pytest.raises(UsageError, match=f"{len(dataset)} samples, batch_size=") as error:
        LoaderSource(DataLoader(dataset, **arguments))
    assert "drop_last=False" in error.value.hint


def test_break_and_the_next_epoch() -> None:
    """A loop that leaves an epoch, then a resume in the next."""
    for arguments in ({}, {"num_workers": 2, "persistent_workers": True}):
        seed_all(1)
        source, _ = make("own generators", **arguments)
        batches = source.begin(0)
        next(batches), next(batches)
        reference = Record()
        cases.follow(reference, source.begin(1), 1, 0, source)
        source.close()
        seed_all(2)
        source, _ = make("own generators", **arguments)
        resumed = run_resumed(source, reference, 1, 3, epochs=2)
        source.close()
        assert resumed.since(1, 3) == reference.since(1, 3)


def test_lines_at_the_head_of_an_epoch_may_draw_from_the_datas_generators() -> None:
    def head(dataset: Samples) -> None:
        assert dataset.old_style is not None
        dataset.old_style.standard_normal(5)

    seed_all(1)
    source, dataset = make("own generators")
    list(source.begin(0))
    stored = source.state(), rng.capture()
    head(dataset)
    reference = Record()
    cases.follow(reference, source.begin(1), 1, 0)
    seed_all(2)
    source, dataset = make("own generators")
    source.restore(stored[0])
    head(dataset)
    resumed = Record()
    cases.follow(resumed, source.resume(1, 0, *stored), 1, 0)
    assert resumed == reference


def test_a_second_resume_from_a_resumed_run() -> None:
    for arguments in ({}, {"num_workers": 2, "persistent_workers": True}):
        reference = undisturbed("own generators", **arguments)
        seed_all(2)
        source, _ = make("own generators", **arguments)
        stored = cases.stored_at(reference, 1, 1)
        second = Record()
        cases.follow(second, source.resume(1, 1, stored["source"], stored["rng"]), 1, 1, source)
        source.close()
        seed_all(3)
        source, _ = make("own generators", **arguments)
        third = run_resumed(source, second, 1, 4)
        source.close()
        assert third.since(1, 4) == reference.since(1, 4)


def test_building_a_source_draws_nothing() -> None:
    loader = CASES["own generators"]()[0]
    before = rng.digest(rng.capture())
    source = LoaderSource(loader)
    source.facts(), source.notes(), source.state(), source.begin(0)
    assert rng.digest(rng.capture()) == before
    assert int(loader.dataset.opened.sum()) == 0  # type: ignore[attr-defined]


def test_length() -> None:
    assert make("shuffle, last batch short")[0].length == 6
    assert make("sequential, drop_last")[0].length == 5
    assert make("unsized")[0].length is None


def test_facts() -> None:
    assert make("sequential, drop_last")[0].facts() == {
        "batch_size": 4,
        "dataset_length": 22,
        "drop_last": True,
        "sampler": "SequentialSampler",
        "workers": "none",
    }
    assert make("batch_sampler")[0].facts()["batch_size"] == 5
    assert make("no batches")[0].facts()["batch_size"] is None
    assert make("augmented", num_workers=2, persistent_workers=True)[0].facts()["workers"] == "persistent"


def test_facts_find_an_unseeded_split() -> None:
    dataset = TensorDataset(torch.arange(200))

    def split(seed: int) -> object:
        outer = random_split(dataset, [150, 50], torch.Generator().manual_seed(seed))[0]
        inner = random_split(outer, [100, 50], torch.Generator().manual_seed(0))[0]
        return LoaderSource(DataLoader(inner, batch_size=4)).facts()["dataset_indices"]

    assert split(1) == split(1) != split(2)
    chosen = [DataLoader(dataset, sampler=list(range(start, start + 90))) for start in (0, 0, 1)]
    digests = [LoaderSource(loader).facts()["sampler_indices"] for loader in chosen]
    assert digests[0] == digests[1] != digests[2]


class OwnIteration(DataLoader[Any]):
    def __iter__(self) -> Any:
        yield from range(3)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def test_only_plain_loaders_are_rebuilt() -> None:
    assert is_plain_loader(CASES["augmented"]()[0])
    assert not is_plain_loader(OwnIteration(TensorDataset(torch.zeros(3))))
    assert not is_plain_loader(DataLoader(Stream()))
    assert not is_plain_loader([1, 2])


class ReportsSignals(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return np.array([signal.getsignal(signal.SIGINT) == signal.SIG_IGN, self.started])

    started = False


def _started(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.started = worker + 1  # type: ignore[attr-defined]


def test_workers_ignore_ctrl_c_and_keep_the_users_start() -> None:
    loader = DataLoader(ReportsSignals(torch.zeros(2)), batch_size=1, num_workers=2, worker_init_fn=_started)
    source = LoaderSource(loader)
    assert [batch.tolist() for batch in source.begin(0)] == [[[1, 1]], [[1, 2]]]
    source.close()


def test_an_error_in_the_dataset_comes_through() -> None:
    source = LoaderSource(DataLoader(Samples(), sampler=[1, 99], batch_size=1))
    batches = source.begin(0)
    next(batches)
    with pytest.raises(IndexError):
        next(batches)
