"""The seams: what a framework and a source of batches must be able to do. Everything above talks to these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepfast.core.words import Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLeaf:
    """A leaf as it lies in the trainer now. `group` names the file it goes to."""

    name: str
    key: str
    group: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    tensor: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """All that decides the next step, collected but not yet copied: leaves, and the rest as JSON.

    `static` is the same object from step to step while model and optimizer keep their tensors, so what was
    prepared for it stays valid; `dynamic` is found anew each time.
    """

    static: tuple[LiveLeaf, ...]
    dynamic: tuple[LiveLeaf, ...]
    is_watched: bool
    """Whether every later write to a leaf can be noticed."""
    aliases: Mapping[str, str]
    tree: dict[str, Any]


class Copier(Protocol):
    def run(self) -> None: ...


class Framework(Protocol):
    """One framework's model, optimizer and tensors."""

    def collect(self, user: Mapping[str, object]) -> TrainState:
        """The train state as it is now, nothing copied. `user` is codec-able state that is not the framework's."""

    def versions(self, state: TrainState) -> list[object]:
        """One for each leaf, other than before once it was written: its version counter, its place, its first bytes.
        A write that moves no counter (`p.data`) and leaves the first bytes alone is not seen."""

    def holds(self, leaves: Sequence[Leaf]) -> bool:
        """Whether model, optimizer and gradients are, digest by digest, those of a checkpoint."""

    def parameter_versions(self) -> list[object]:
        """Cheap numbers that move with every update; always new where updates are made by hand."""

    def written_by_forward(self) -> dict[str, Any]:
        """Copies of the small tensors that Forward writes (running statistics), by leaf name; after `collect`."""

    def copier(self, sources: Sequence[LiveLeaf], slot: memoryview, offsets: Sequence[int]) -> Copier:
        """A prepared copy of live leaves to places in a slot's memory."""

    def check(self, leaves: Sequence[Leaf], aliases: Mapping[str, str], tree: dict[str, Any]) -> None:
        """Raise StateMismatch, naming the first difference, before anything is written."""

    def check_model(self, leaves: Sequence[Leaf], aliases: Mapping[str, str]) -> None:
        """The same for the model alone."""

    def destinations(self, leaves: Sequence[Leaf]) -> dict[str, memoryview]:
        """Writable memory for every leaf, by leaf name; the live memory where that is possible."""

    def place(self) -> None:
        """Leaves that could not be read to where they live are copied there."""

    def apply(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Put everything in place once all leaves were read; returns the user part."""

    def settle(self) -> dict[str, Any]:
        """Once more what `apply` did, tensors of model and optimizer excepted: flags, groups, schedules, the user
        part. For the first batch of a resume, when the script's own lines before it have run."""

    def settings(self) -> dict[str, object]:
        """Model class, optimizer and schedule as constructed, to be compared at the next start."""

    def change(self, keys: Sequence[str], old: Mapping[str, object]) -> None:
        """Give restored optimizers and schedules the newly constructed values of these settings."""


class BatchSource(Protocol):
    """The user's data, in the order of the user's script."""

    length: int | None
    """Batches in an epoch; None where only the end tells."""

    def facts(self) -> dict[str, object]: ...

    def begin(self, epoch: int) -> Iterator[Any]: ...

    def resume(self, epoch: int, batch: int, state: Any, boundary_rng: Any) -> Iterator[Any]: ...

    def state(self) -> Any: ...

    def restore(self, state: Any) -> None:
        """Put the data's own generators back, before the script's lines at the head of an epoch run."""

    def notes(self) -> list[str]: ...

    def new_notes(self) -> list[str]:
        """Those that have appeared since they were last asked for; cheap when there are none."""

    def close(self) -> None: ...


class Kit(Protocol):
    """A framework's whole side of a Run."""

    def framework(
        self, *, model: object, optimizer: object, scheduler: object, scaler: object, extra: Mapping[str, object] | None
    ) -> Framework: ...

    def source(self, data: Any) -> BatchSource | None:
        """The framework's own loader as a source that can skip; None for any other iterable."""

    def generators(self, data: object) -> Any:
        """The random generators that an iterable holds."""

    def buffer_for(self, leaf: Leaf) -> tuple[Any, memoryview]:
        """A new tensor for a leaf, and its writable bytes."""

    def capture_rng(self) -> dict[str, object]: ...

    def restore_rng(self, state: Any) -> None: ...

    def digest_rng(self, state: Any) -> str: ...

    def batch_digest(self, batch: object) -> bytes: ...

    def scalar(self, value: object) -> float | None:
        """One number, or None when the value is not one."""

    def seed(self, number: int) -> None: ...

    def determinism(self) -> dict[str, Any]: ...

    def switch_deterministic_on(self) -> None: ...
