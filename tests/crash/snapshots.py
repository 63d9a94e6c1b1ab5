"""Small snapshots to save, and how a run is saved, tidied and taken over: what the agent does, in its order.

Used by the traced writers and by the check, so that both speak of the same checkpoints.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import time
from pathlib import Path

from stepfast.core.words import Leaf, StoredFile, round_up
from stepfast.persist.persist import persist
from stepfast.persist.previous import Previous, ReadBack
from stepfast.policy.retention import Kept, Retention, plan
from stepfast.store import ledger
from stepfast.store.manifest import Manifest
from stepfast.store.run_directory import RunDirectory
from stepfast.store.safetensors import build_header
from stepfast.store.tidy import apply_plan
from stepfast.wire.messages import Span

RUN_ID = "0123456789abcdef"


def tensor_file(name: str, leaves: dict[str, bytes]) -> tuple[StoredFile, bytes]:
    header, offsets, size = build_header([(key, "U8", (len(data),)) for key, data in leaves.items()], {})
    content = bytearray(size)
    content[: len(header)] = header
    stored = []
    for (key, data), offset in zip(leaves.items(), offsets, strict=True):
        content[offset : offset + len(data)] = data
        leaf = Leaf(name=key, key=key, dtype="U8", shape=(len(data),), offset=offset, size=len(data))
        stored.append(leaf)
    return StoredFile(name=name, size=size, leaves=tuple(stored)), bytes(content)


def noise(seed: str, size: int) -> bytes:
    return hashlib.shake_128(seed.encode()).digest(size)


def files(step: int, revision: int) -> list[tuple[StoredFile, bytes]]:
    """Three that change with the step, one that does not and becomes a hard link."""
    seed = f"{step} {revision}"
    loop = b'{"step": %d, "revision": %d}\n' % (step, revision)
    return [
        tensor_file("model.safetensors", {"weight": noise(seed, 5000), "bias": noise(seed + "b", 40)}),
        tensor_file("optimizer.safetensors", {"moment": noise(seed + "m", 700)}),
        tensor_file("frozen.safetensors", {"embedding": noise("frozen", 300)}),
        (StoredFile(name="loop.json", size=len(loop)), loop),
    ]


def save(run: RunDirectory, step: int, *, revision: int = 0, name: str | None = None, incarnation: str = "1-1") -> None:
    """Bring a checkpoint of `step` to disk as the agent does; acknowledged when this returns."""
    parts = files(step, revision)
    slot = mmap.mmap(-1, sum(round_up(stored.size) for stored, _ in parts))  # aligned, as a slot is
    spans, at = [], 0
    for stored, content in parts:
        spans.append(Span(name=stored.name, offset=at, size=stored.size))
        slot[at : at + stored.size] = content
        at += round_up(stored.size)
    draft = Manifest(
        run_id=run.run_id,
        step=step,
        epoch=0,
        batch=step,
        reasons=("test",),
        created="2026-01-01T00:00:00Z",
        k0_s=0.0,
        name=name,
        revision=revision,
        files=tuple(stored for stored, _ in parts),
    )
    facts = persist(
        run,
        memoryview(slot),
        spans,
        draft,
        (),
        previous=Previous.newest(run, step, (), ReadBack()),
        incarnation=incarnation,
        received_s=time.monotonic(),
    )
    if name is not None:
        run.set_tag(name, step)
    ledger.append(run.ledger_path, {"event": ledger.COMMIT, "step": facts.step, "revision": revision})


def prune(run: RunDirectory, *, newest: int) -> list[int]:
    tags = run.tags()
    present = [
        Kept(step=step, verified=True, tags=tuple(name for name, tagged in tags.items() if tagged == step))
        for step in run.steps()
    ]
    return apply_plan(run, plan(present, Retention(newest=newest)))


def say(line: str) -> None:
    os.write(1, f"ACK {line}\n".encode())


def make_run(path: Path) -> RunDirectory:
    return RunDirectory.create(path, RUN_ID)
