"""Resume: the newest whole checkpoint goes into the script's objects; a damaged one is named and passed over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepfast.core.errors import Damaged
from stepfast.core.protocols import Framework
from stepfast.store.manifest import Manifest
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory

LOOP_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was loaded, and what was not."""

    manifest: Manifest
    manifest_sha256: str
    loop: dict[str, Any]
    user: dict[str, Any]
    segments: dict[str, bytes]
    passed_over: tuple[str, ...]
    """Newer checkpoints that are damaged, each with its reason."""
    read_s: float


def restore(
    run: RunDirectory, framework: Framework, check: Callable[[Manifest, dict[str, Any]], None]
) -> Restored | None:
    """Load the newest checkpoint that is whole; None when there is none at all.

    `check` compares settings and raises before anything is written.

    Raises:
        Damaged: there are checkpoints, and none of them is whole.
    """
    passed_over: list[str] = []
    for step in reversed(run.steps()):
        began = time.perf_counter()
        try:
            reader = CheckpointReader(run, step)
            loop = _loop(reader)
            check(reader.manifest, loop)
            user, segments = load(reader, loop, framework)
        except Damaged as error:
            passed_over.append(error.message)
            continue
        return Restored(
            manifest=reader.manifest,
            manifest_sha256=reader.manifest_sha256,
            loop=loop,
            user=user,
            segments=segments,
            passed_over=tuple(passed_over),
            read_s=time.perf_counter() - began,
        )
    if passed_over:
        raise Damaged(
            f"no checkpoint in {run.path} is whole: {'; '.join(passed_over)}",
            hint="copy the run back from a backup, or start over: STEPFAST_RESUME=fresh",
        )
    return None


def load(
    reader: CheckpointReader, loop: dict[str, Any], framework: Framework
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read every leaf to its place, digests compared on the way, then put the rest in place."""
    manifest = reader.manifest
    leaves = [leaf for stored in manifest.files for leaf in stored.leaves]
    framework.check(leaves, manifest.aliases, loop["tree"])
    segments = {f.name: reader.read_file(f.name) for f in manifest.files if f.name.startswith("metrics-")}
    memory = framework.destinations(leaves)
    for stored in manifest.files:
        if stored.leaves:
            reader.read_into(stored, {leaf.key: memory[leaf.name] for leaf in stored.leaves})
    return framework.apply(loop["tree"]), segments


def load_model(reader: CheckpointReader, framework: Framework) -> None:
    """Only the model's leaves."""
    manifest = reader.manifest
    leaves = [leaf for stored in manifest.files for leaf in stored.leaves if leaf.name.startswith("model.")]
    framework.check_model(leaves, manifest.aliases)
    memory = framework.destinations(leaves)
    for stored in manifest.files:
        if wanted := {leaf.key: memory[leaf.name] for leaf in stored.leaves if leaf.name in memory}:
            reader.read_into(stored, wanted)
    framework.place()


def _loop(reader: CheckpointReader) -> dict[str, Any]:
    loop = reader.loop()
    if not isinstance(loop, dict) or loop.get("format") != LOOP_FORMAT or not isinstance(loop.get("tree"), dict):
        raise Damaged(f"{reader.path / 'loop.json'} is not a loop of format {LOOP_FORMAT}")
    return loop
