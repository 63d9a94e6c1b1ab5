"""A plain DataLoader, rebuilt so that its epochs can begin at any batch. The batches are those of the script.

What is special about a resumed epoch, in this order: the generators as they were when the epoch began; the
new iterator, which draws as it did then; the order, asked again for what is skipped; the generators as they
were at the boundary. With workers the iterator prefetches when it is made, so there the last comes after it.

Iterables of any other kind are `stepfast.data.plain`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import torch
from torch.utils.data import DataLoader, IterableDataset

from stepfast.core.errors import StateMismatch, UsageError
from stepfast.frameworks.torch import rng
from stepfast.frameworks.torch.generators import FoundGenerators
from stepfast.frameworks.torch.loader_facts import batching, loader_facts
from stepfast.frameworks.torch.order import Plan, PlannedOrder
from stepfast.frameworks.torch.sampler_state import SamplerState
from stepfast.frameworks.torch.workers import WorkerStart
from stepfast.policy.batching import check_batching

_OURS = {"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "worker_init_fn"}
"""Arguments of DataLoader that are not taken over as they are."""


def is_plain_loader(data: object) -> TypeGuard[DataLoader[Any]]:
    """Whether `data` is a DataLoader whose epochs LoaderSource can rebuild."""
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset):
        return False
    return all(
        getattr(type(data), name, None) is getattr(DataLoader, name, None) for name in ("__iter__", "_get_iterator")
    )


class LoaderSource:
    """Batches of a plain DataLoader; a `core.protocols.BatchSource`."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        assert is_plain_loader(loader)
        self._user_loader = loader
        sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._order = PlannedOrder(sampler)
        self._loader: DataLoader[Any] | None = _rebuild(loader, self._order)
        self.length: int | None = _length(loader)
        self._batching = batching(loader) | {"length": self.length}
        if self.length == 0:
            raise UsageError(
                f"data= has no batch: {_samples(loader)}batch_size={self._batching['batch_size']}, "
                f"drop_last={self._batching['drop_last']}",
                hint="fill the dataset, or take a smaller batch_size or drop_last=False",
            )
        self._samplers = SamplerState(sampler)
        self._sent_ahead = loader.num_workers * (loader.prefetch_factor or 0)
        ordering: dict[str, object] = {"generator": loader.generator, "sampler": sampler}
        self._ordering = FoundGenerators(ordering, skip=(loader.dataset,))
        reading: dict[str, object] = {"dataset": loader.dataset, "collate_fn": loader.collate_fn}
        self._live = FoundGenerators(ordering | reading)
        self._seed: int | None = None
        self._first: dict[str, Any] | None = None
        self._start: dict[str, Any] | None = None
        self._has_workers_running = False
        self._look_again = False
        self._is_restored = False
        self._epoch: EpochIterator | None = None
        self._told: list[str] = []
        self._has_news = False
        self._drew_before = False

    def facts(self) -> dict[str, object]:
        return loader_facts(self._user_loader)

    def begin(self, epoch: int) -> Iterator[Any]:
        """A fresh epoch. The loader's iterator is made when the first batch is asked for."""
        return self._iterate(lambda: self._open(epoch))

    def state(self) -> dict[str, object]:
        """What a resume at this boundary needs. To be called before the next batch is fetched."""
        if self._look_again:
            # A dataset may make its generators when the first sample is read.
            self._live.search()
            self._look_again = False
            self._has_news = True
        return {
            "seed": self._seed,
            "workers": self._first,
            "start": self._start,
            "live": self._live.capture(),
            "samplers": self._samplers.capture(),
            "sent_ahead": self._sent_ahead,
            "order": self._order.handed,
        }

    def restore(self, state: Any) -> None:
        """Put the generators of the data back, before the lines at the head of an epoch run.

        A resume at an epoch's start must not undo what those lines draw; without this call it puts them back itself.
        From here on `state()` is what it was at the boundary, also before the epoch is opened.
        """
        self._seed, self._first, self._start = state["seed"], state["workers"], state["start"]
        self._live.restore(state["live"])
        self._samplers.restore(state["samplers"])
        self._order.handed = state["order"]
        self._is_restored = True

    def resume(self, epoch: int, batch: int, state: Any, boundary_rng: Any) -> Iterator[Any]:
        """The epoch from `batch` on, in a new process. No sample before it is opened."""
        start = state["start"]
        if batch and (start is None or start["epoch"] != epoch):
            raise StateMismatch(
                f"the checkpoint is at batch {batch} of epoch {epoch + 1} but does not hold how it began",
                hint="resume from the checkpoint before it",
            )
        if batch:
            check_batching(start["batching"], self._batching, epoch, batch)
        self._seed, self._first = state["seed"], state["workers"]

        def settle() -> None:
            rng.restore(boundary_rng)
            if batch or not self._is_restored:
                self._live.restore(state["live"])
                # What a sampler has moved for workers that run further ahead is not where it stands here.
                if not batch or state["sent_ahead"] == self._sent_ahead:
                    self._samplers.restore(state["samplers"], in_epoch=batch > 0)

        def open_there() -> Iterator[Any]:
            if batch == 0:
                settle()
                return self._open(epoch)
            rng.restore(start["rng"])
            self._ordering.restore(start["generators"])
            self._samplers.restore(start["samplers"])
            self._start = start
            return self._make(epoch, skip=batch, skipped=state["order"], settle=settle)

        settle()
        return self._iterate(open_there)

    def notes(self) -> list[str]:
        loader = self._user_loader
        notes = []
        if loader.num_workers:
            notes.append(
                "random transforms in loader workers draw from a stream per batch: "
                "the same distribution as without Stepfast, not the same draws"
            )
            if not getattr(loader, "in_order", True):
                notes.append("in_order=False: batches come as workers finish them, so a resume cannot be exact")
        if names := self._live.names():
            notes.append(f"random generators found in the data: {', '.join(names)}")
        if not self._live.complete:
            notes.append(
                "the search for random generators in the data stopped at its limit; "
                "hand over those it cannot see as extra="
            )
        if self._order.drew_between_batches:
            notes.append(
                f"{self._order.sampler_name()} draws from a global generator between batches: "
                "from the second batch on it draws from a stream of its own"
            )
        self._told = notes
        return notes

    def new_notes(self) -> list[str]:
        """Notes that the run has brought up since they were last asked for; for every boundary."""
        if self._order.drew_between_batches != self._drew_before:
            self._drew_before = self._has_news = True
        if not self._has_news:
            return []
        self._has_news = False
        told = self._told
        return [note for note in self.notes() if note not in told]

    def close(self) -> None:
        """Stop the workers. The source is used up."""
        if self._epoch is not None:
            self._epoch.close(stop_workers=True)
        self._epoch = self._loader = None

    def _iterate(self, opening: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        if self._epoch is not None:
            self._epoch.close(stop_workers=False)
        self._epoch = EpochIterator(opening, self._order.hand)
        return self._epoch

    def _open(self, epoch: int) -> Iterator[Any]:
        self._ordering.search()
        self._start = {
            "epoch": epoch,
            "rng": rng.capture(),
            "generators": self._ordering.capture(),
            "samplers": self._samplers.capture(whole=True),
            "batching": self._batching,
        }
        return self._make(epoch, skip=0, skipped="", settle=None)

    def _make(self, epoch: int, *, skip: int, skipped: str, settle: Callable[[], None] | None) -> Iterator[Any]:
        loader, user = self._loader, self._user_loader
        assert loader is not None, "the source was closed"
        self._look_again = True
        if not user.num_workers:
            self._order.plan = Plan(
                epoch=epoch, skip=skip, skipped=skipped, after_skip=settle, stream=self._stream(epoch)
            )
            return iter(loader)
        source = (user.generator or torch.default_generator).get_state()
        if self._seed is None:
            self._seed = _first_draw(source)
        if user.persistent_workers and self._first is None:
            self._first = {"epoch": epoch, "source": source.numpy().tobytes()}
        plan = Plan(epoch=epoch, skip=skip, skipped=skipped, seed=self._seed, stream=self._stream(epoch))
        self._order.plan = plan
        if self._first is not None and self._first["epoch"] != epoch and not self._has_workers_running:
            # In the undisturbed run these workers began in an earlier epoch, and this one drew no base seed and
            # made one iterator only. They get the base seed they had then.
            plan.empty_iterators = 1
            loader.generator = torch.Generator()
            loader.generator.set_state(torch.frombuffer(bytearray(self._first["source"]), dtype=torch.uint8))
        try:
            batches = iter(loader)
        finally:
            loader.generator = user.generator
        if plan.failure is not None:
            _stop_workers(batches)
            raise plan.failure
        self._has_workers_running = user.persistent_workers
        if settle is not None:
            settle()
        return batches

    def _stream(self, epoch: int) -> bytes:
        if not self._order.has_own_stream:
            return b""
        assert self._start is not None
        return f"{rng.digest(self._start['rng'])} {epoch} ".encode()


class EpochIterator(Iterator[Any]):
    """One epoch's batches. The loader's iterator is made at the first request, which is the boundary."""

    def __init__(self, opening: Callable[[], Iterator[Any]], on_handed: Callable[[], None]) -> None:
        self._opening: Callable[[], Iterator[Any]] | None = opening
        self._on_handed = on_handed
        self._batches: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        if self._opening is not None:
            opening, self._opening = self._opening, None
            self._batches = opening()
        batch = next(self._batches)
        self._on_handed()
        return batch

    def close(self, *, stop_workers: bool) -> None:
        if stop_workers:
            _stop_workers(self._batches)
        self._opening, self._batches = None, iter(())


def _stop_workers(batches: Iterator[Any]) -> None:
    stop = getattr(batches, "_shutdown_workers", None)
    if stop is not None:
        stop()


def _rebuild(loader: DataLoader[Any], order: PlannedOrder) -> DataLoader[Any]:
    """The same loader around our order. Arguments that a version of torch does not know are left out."""
    known = inspect.signature(DataLoader.__init__).parameters
    arguments: dict[str, Any] = {
        name: getattr(loader, name) for name in known if name not in _OURS and hasattr(loader, name)
    }
    if loader.num_workers:
        arguments["worker_init_fn"] = WorkerStart(loader.worker_init_fn, loader.collate_fn)
    if loader.batch_sampler is None:
        arguments |= {"batch_size": None, "sampler": order}
    else:
        arguments["batch_sampler"] = order
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all of them were given when the user made the loader
        return DataLoader(loader.dataset, **arguments)


def _length(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # the sampler has no length
        return None


def _samples(loader: DataLoader[Any]) -> str:
    try:
        return f"{len(loader.dataset)} samples, "  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return ""


def _first_draw(state: torch.Tensor) -> int:
    """What the loader will draw as its base seed, found without drawing it."""
    generator = torch.Generator()
    generator.set_state(state)
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
