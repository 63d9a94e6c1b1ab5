"""The user's sampler with a plan for one epoch around it: how many batches to skip, and what goes to workers.

The order is the user's own: the sampler is asked as often as the loop would have asked it, and no sample is
opened.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import xxhash
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from stepfast.core.errors import StateMismatch
from stepfast.frameworks.torch import rng
from stepfast.frameworks.torch.batch_digest import batch_digest
from stepfast.frameworks.torch.workers import Sent, seed_globals

_DRAW_ONCE = (
    RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler,
    list, tuple, range,
)  # fmt: skip
"""Samplers that touch the global generators before their first index only."""

MAX_HASHED = 512
"""Indices of a batch that its digest reads; of a larger batch as many or up to twice as many, spread over it."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """What is special about one epoch."""

    epoch: int
    skip: int = 0
    skipped: str = ""
    """The digest that the skipped batches must have."""
    after_skip: Callable[[], None] | None = None
    """Runs after the last skipped batch and before the first that is used."""
    seed: int | None = None
    """Of the run; None where the loader has no workers."""
    stream: bytes = b""
    """Seed of a sampler that draws from a global generator between batches."""
    failure: StateMismatch | None = None
    """Why the walk ended at what it was to skip, where workers are waiting: an iterator half made keeps them."""
    empty_iterators: int = 0
    """How many iterators are made only to be thrown away: the loader's own start makes one."""


class PlannedOrder:
    """Stands in the place of the loader's batch sampler (or sampler, where it does not batch)."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.plan = Plan(epoch=0)
        self.has_own_stream = not _draws_once(inner)
        self.drew_between_batches = False
        self.handed = ""
        """Digest of the indices of this epoch's batches that the loop was given, in their order."""
        self._ahead: deque[str] = deque()

    def hand(self) -> None:
        """The loop was given one more batch. Workers have been sent some more by then."""
        if self._ahead:
            self.handed = self._ahead.popleft()

    def drew(self, indices: object) -> None:
        self._ahead.append(_digest(self._ahead[-1] if self._ahead else self.handed, indices))

    def __len__(self) -> int:
        return len(self.inner)

    def sampler_name(self) -> str:
        return type(self.inner.sampler if type(self.inner) is BatchSampler else self.inner).__qualname__

    def __iter__(self) -> Iterator[Any]:
        if self.plan.empty_iterators:
            self.plan.empty_iterators -= 1
            return iter(())
        self.handed = ""
        self._ahead.clear()
        return _Walk(self, self.plan, iter(self.inner))


class _Walk(Iterator[Any]):
    def __init__(self, order: PlannedOrder, plan: Plan, inner: Iterator[Any]) -> None:
        self._order = order
        self._plan = plan
        self._inner = inner
        self._batch = 0
        self._stream: dict[str, object] | None = None

    def __next__(self) -> Any:
        plan = self._plan
        if plan.failure is not None:
            raise StopIteration
        if self._batch < plan.skip:
            try:
                self._skip()
            except StateMismatch as failure:
                if plan.seed is None:
                    raise
                plan.failure = failure
                raise StopIteration from None
        indices = self._draw()
        self._order.drew(indices)
        self._batch += 1
        if plan.seed is None:
            return indices
        return Sent(indices, seed=plan.seed, epoch=plan.epoch, batch=self._batch - 1)

    def _skip(self) -> None:
        while self._batch < self._plan.skip:
            try:
                self._order.drew(self._draw())
            except StopIteration:
                raise StateMismatch(
                    f"epoch {self._plan.epoch + 1} now ends after {self._batch} batches, "
                    f"the checkpoint was written after {self._plan.skip}",
                    hint="resume with the dataset and the sampler of the run",
                ) from None
            self._order.hand()
            self._batch += 1
        if self._order.handed != self._plan.skipped:
            name = self._order.sampler_name()
            raise StateMismatch(
                f"{name} gives another order: the first {self._batch} batches of epoch {self._plan.epoch + 1} are not "
                "those that the checkpoint was written after",
                hint=f"give {name} state_dict and load_state_dict, or derive its order from set_epoch(epoch)",
            )
        if self._plan.after_skip is not None:
            self._plan.after_skip()

    def _draw(self) -> Any:
        # The first draw is the script's own, from the global generators: most samplers seed themselves by it.
        if self._batch == 0 or not self._order.has_own_stream:
            return next(self._inner)
        # A resume asks for many indices in a row, with no step between them: what the loop draws from the
        # global generators must not reach the order.
        outside = rng.capture_cpu()
        if self._stream is None:
            seed_globals(self._plan.stream)
            self._stream = rng.capture_cpu()
        else:
            rng.restore(self._stream)
        try:
            return next(self._inner)
        finally:
            after = rng.capture_cpu()
            self._order.drew_between_batches |= after != self._stream
            self._stream = after
            rng.restore(outside)


def _draws_once(sampler: object) -> bool:
    if type(sampler) is BatchSampler:
        return _draws_once(sampler.sampler)
    return type(sampler) in _DRAW_ONCE


def _digest(before: str, indices: object) -> str:
    many: Any = indices if isinstance(indices, (list, tuple)) else (indices,)
    count = len(many)
    if count > MAX_HASHED:
        many = many[:: count // MAX_HASHED]
    try:
        raw = array("q", many).tobytes()
    except (TypeError, OverflowError, ValueError, RuntimeError):  # not numbers
        raw = batch_digest(many)
    return xxhash.xxh3_64_hexdigest(b"%b %d " % (before.encode(), count) + raw)
