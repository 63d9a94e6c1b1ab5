"""`load` and `peek`: a checkpoint's weights, or what a resume would bring, without a Run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from stepfast.restore.restore import load_model
from stepfast.store.manifest import Manifest
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory
from stepfast.trainer.frameworks import default_kit, kit_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek:
    """What a resume would bring, read from the newest checkpoint."""

    path: str
    step: int
    epoch: int
    batch: int
    finished: str | None
    settings: Mapping[str, Any]
    leaves: Mapping[str, tuple[str, tuple[int, ...]]]
    """Leaf name -> (dtype, shape)."""


def peek(path: str | PurePath) -> Peek | None:
    """What a resume of `path` would bring; None when it would start fresh."""
    name, _, which = str(path).partition("@")
    if not RunDirectory.is_run(name):
        return None
    run = RunDirectory.open(name)
    if not run.steps():
        return None
    reader = CheckpointReader(run, run.resolve(which or "latest"))
    manifest = reader.manifest
    return Peek(
        path=str(run.path),
        step=manifest.step,
        epoch=manifest.epoch,
        batch=manifest.batch,
        finished=manifest.finished,
        settings=reader.loop()["settings"],
        leaves={leaf.name: (leaf.dtype, leaf.shape) for stored in manifest.files for leaf in stored.leaves},
    )


class Leaves(Mapping[str, Any]):
    """All leaves of a checkpoint by name, each read and verified when it is asked for."""

    def __init__(self, reader: CheckpointReader) -> None:
        self._reader = reader
        self._kit = default_kit()
        self._leaves = {leaf.name: leaf for stored in reader.manifest.files for leaf in stored.leaves}

    @property
    def manifest(self) -> Manifest:
        return self._reader.manifest

    def __getitem__(self, name: str) -> Any:
        leaf = self._leaves[self.manifest.aliases.get(name, name)]
        tensor, memory = self._kit.buffer_for(leaf)
        self._reader.read_leaf_into(leaf, memory)
        return tensor

    def __iter__(self) -> Iterator[str]:
        yield from self._leaves
        yield from self.manifest.aliases

    def __len__(self) -> int:
        return len(self._leaves) + len(self.manifest.aliases)


def load(path: str | PurePath, *, model: Any = None) -> Any:
    """Weights of `RUN`, `RUN@500`, `RUN@latest` or `RUN@TAG`.

    With `model=` they are put into it, verified, and the model is given back. Without, a mapping from leaf names to
    tensors that reads each leaf when it is asked for.
    """
    name, _, which = str(path).partition("@")
    run = RunDirectory.open(name)
    reader = CheckpointReader(run, run.resolve(which or "latest"))
    if model is None:
        return Leaves(reader)
    framework = kit_for(model).framework(model=model, optimizer=None, scheduler=None, scaler=None, extra=None)
    load_model(reader, framework)
    return model
