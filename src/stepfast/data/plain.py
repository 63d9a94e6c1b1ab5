"""Any iterable as a source of batches: a resume draws the skipped batches again and drops them.

Nothing is known about the iterable but that `iter()` begins an epoch. Loaders that can skip without opening
samples are the business of their framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from stepfast.core.errors import StateMismatch, UsageError
from stepfast.policy.batching import check_batching


class GlobalRng(Protocol):
    """The global generators; a framework's `rng` module."""

    def capture(self) -> dict[str, object]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Generators(Protocol):
    """Generators that the iterable's objects hold."""

    def search(self) -> None: ...

    def names(self) -> list[str]: ...

    def capture(self) -> dict[str, object]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class IterableSource:
    """Batches of an iterable; a `core.protocols.BatchSource`.

    Args:
        data: each `iter(data)` is an epoch.
        rng: the global generators.
        generators: those that `data` holds, where somebody can find them.
        length: batches in an epoch, None where only the end of the iteration tells.
    """

    def __init__(
        self, data: Iterable[Any], *, rng: GlobalRng, generators: Generators | None = None, length: int | None
    ) -> None:
        if isinstance(data, Iterator):
            raise UsageError(
                f"data= is a {type(data).__name__}, an iterator that can be used once: a resume cannot begin it again",
                hint="pass what it was made from (a DataLoader, a list), or an object whose __iter__ makes "
                "a new iterator, or data=None and fetch batches in the loop",
            )
        if not isinstance(data, Iterable):
            raise UsageError(
                f"data= is a {type(data).__name__}, which cannot be iterated",
                hint="pass a DataLoader or another iterable, or data=None and fetch batches in the loop",
            )
        if length == 0:
            raise UsageError(
                f"data= is a {type(data).__name__} of length 0: there is no batch to train on",
                hint="fill it before the Run is made, or take a smaller batch_size or drop_last=False",
            )
        self.length = length
        self._data = data
        self._rng = rng
        self._generators = generators
        self._start: dict[str, Any] | None = None
        self._first_epoch: int | None = None
        self._is_restored = False
        self._epoch: _Epoch | None = None
        self._told: list[str] = []
        self._has_news = False

    def facts(self) -> dict[str, object]:
        return {"data": type(self._data).__qualname__, **self._batching()}

    def begin(self, epoch: int) -> Iterator[Any]:
        return self._iterate(lambda: self._open(epoch))

    def state(self) -> dict[str, object]:
        """What a resume at this boundary needs. To be called before the next batch is fetched."""
        live = self._generators.capture() if self._generators is not None else {}
        return {"first": self._first_epoch, "start": self._start, "live": live}

    def restore(self, state: Any) -> None:
        """Put the generators of the data back, before the lines at the head of an epoch run.

        A resume at an epoch's start must not undo what those lines draw; without this call it puts them back itself.
        From here on `state()` is what it was at the boundary, also before the epoch is opened.
        """
        self._first_epoch, self._start = state["first"], state["start"]
        if self._generators is not None:
            self._generators.restore(state["live"])
        self._is_restored = True

    def resume(self, epoch: int, batch: int, state: Any, boundary_rng: Any) -> Iterator[Any]:
        """The epoch from `batch` on: the batches before it are drawn again and dropped."""
        start = state["start"]
        if batch and (start is None or start["epoch"] != epoch):
            raise StateMismatch(
                f"the checkpoint is at batch {batch} of epoch {epoch + 1} but does not hold how it began",
                hint="resume from the checkpoint before it",
            )
        if batch:
            check_batching(start["batching"], self._batching(), epoch, batch)

        def settle() -> None:
            self._rng.restore(boundary_rng)
            if self._generators is not None and (batch or not self._is_restored):
                self._generators.restore(state["live"])

        def open_there() -> Iterator[Any]:
            self._first_epoch = state["first"]
            if batch == 0:
                settle()
                batches = self._open(epoch)
                if self._began_earlier(epoch):
                    settle()
                return batches
            self._rng.restore(start["rng"])
            if self._generators is not None:
                self._generators.restore(start["generators"])
            self._start = start
            batches = iter(self._data)
            if self._began_earlier(epoch):
                self._rng.restore(start["rng"])
            for dropped in range(batch):
                try:
                    next(batches)
                except StopIteration:
                    raise StateMismatch(
                        f"epoch {epoch + 1} now ends after {dropped} batches, the checkpoint was written after {batch}",
                        hint="resume with the data of the run",
                    ) from None
            settle()
            return batches

        settle()
        return self._iterate(open_there)

    def notes(self) -> list[str]:
        notes = [
            f"{type(self._data).__name__} cannot skip: a resume in the middle of an epoch draws the batches "
            "before it again and drops them"
        ]
        if getattr(self._data, "persistent_workers", False):
            notes.append(
                "persistent workers keep random state that cannot be stored: a resume may differ in their draws"
            )
        if self._generators is not None and (names := self._generators.names()):
            notes.append(f"random generators found in the data: {', '.join(names)}")
        self._told = notes
        return notes

    def new_notes(self) -> list[str]:
        """Notes that the run has brought up since they were last asked for; for every boundary."""
        if not self._has_news:
            return []
        self._has_news = False
        told = self._told
        return [note for note in self.notes() if note not in told]

    def close(self) -> None:
        if self._epoch is not None:
            self._epoch.close()
            self._epoch = None

    def _batching(self) -> dict[str, object]:
        found: dict[str, object] = {"length": self.length}
        for name in ("batch_size", "drop_last"):
            value = getattr(self._data, name, None)
            if isinstance(value, (int, bool)):
                found[name] = value
        return found

    def _began_earlier(self, epoch: int) -> bool:
        """Persistent workers draw their seed in their first epoch only; a new process draws it again."""
        return bool(getattr(self._data, "persistent_workers", False)) and self._first_epoch not in (
            None,
            epoch,
        )

    def _iterate(self, opening: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        self.close()
        self._epoch = _Epoch(opening)
        return self._epoch

    def _open(self, epoch: int) -> Iterator[Any]:
        generators: dict[str, object] = {}
        if self._generators is not None:
            self._generators.search()
            generators = self._generators.capture()
            self._has_news = True
        if self._first_epoch is None:
            self._first_epoch = epoch
        self._start = {
            "epoch": epoch,
            "rng": self._rng.capture(),
            "generators": generators,
            "batching": self._batching(),
        }
        return iter(self._data)


class _Epoch(Iterator[Any]):
    """One epoch's batches; the iterator is made at the first request, which is the boundary."""

    def __init__(self, opening: Callable[[], Iterator[Any]]) -> None:
        self._opening: Callable[[], Iterator[Any]] | None = opening
        self._batches: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        if self._opening is not None:
            opening, self._opening = self._opening, None
            self._batches = opening()
        return next(self._batches)

    def close(self) -> None:
        self._opening, self._batches = None, iter(())


def length_of(data: object) -> int | None:
    """`len(data)`, or None where it has none."""
    try:
        return len(data)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None
