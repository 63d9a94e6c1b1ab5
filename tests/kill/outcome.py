"""What a run ended with, to the last bit, and in words where two runs differ."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepfast.store.progress import read_progress
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished run: its last checkpoint and what the script printed after the loop."""

    result: str
    facts: dict[str, Any]
    """Of the manifest: where it stands, why it ended, names of leaves and their order, digests, aliases."""
    loop: Any
    metrics: dict[str, bytes]
    rows: dict[int, tuple[object, ...]]
    """Of progress.bin: epoch, batch, bits of what was logged, by step."""
    batches: dict[int, bytes]
    """Batch digests of the steps that have one: where steps are fast Stepfast leaves most of them out, and a loop
    without a loader has none. The loops log a sum of their batches, so that the rows tell of each."""


def read(path: Path, result: str) -> Outcome:
    run = RunDirectory.open(path)
    reader = CheckpointReader(run, run.resolve("latest"))
    assert reader.manifest.step == run.steps()[-1], "latest is not the newest checkpoint"
    assert not reader.verify(), "the last checkpoint is damaged"
    manifest = reader.manifest
    rows = read_progress(run.progress_path)
    return Outcome(
        result=result,
        facts={
            "cursor": [manifest.step, manifest.epoch, manifest.batch],
            "finished": manifest.finished,
            "files": [stored.name for stored in manifest.files],
            "leaves": {
                f"{stored.name} {leaf.name}": [leaf.dtype, leaf.shape, leaf.strides, leaf.digest]
                for stored in manifest.files
                for leaf in stored.leaves
            },
            "order": [leaf.name for stored in manifest.files for leaf in stored.leaves],
            "aliases": manifest.aliases,
            "determinism": manifest.determinism,
        },
        loop=reader.loop(),
        metrics={s.name: reader.read_file(s.name) for s in manifest.files if s.name.startswith("metrics-")},
        rows={
            step: (row.epoch, row.batch, row.values_digest, None if row.loss is None else struct.pack("<d", row.loss))
            for step, row in sorted(rows.items())
        },
        batches={step: row.batch_digest for step, row in sorted(rows.items()) if row.batch_digest is not None},
    )


def differences(was: Outcome, now: Outcome) -> list[str]:
    """Empty when exact."""
    found = list(_differences("facts", was.facts, now.facts))
    found += _differences("loop.json", was.loop, now.loop)
    found += _differences("metrics", was.metrics, now.metrics)
    found += _differences("progress.bin", was.rows, now.rows)
    both = was.batches.keys() & now.batches.keys()
    found += _differences("batches", {s: was.batches[s] for s in both}, {s: now.batches[s] for s in both})
    if was.result != now.result or not was.result:
        found.append(f"after the loop the script saw {now.result!r}, not {was.result!r}")
    if was.batches and len(both) < min(len(was.rows), 5):
        found.append(f"only {len(both)} batches could be compared")
    return found


def _differences(name: str, was: Any, now: Any) -> Iterator[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        if list(was) != list(now):
            only = sorted(map(str, was.keys() ^ now.keys()))
            yield f"{name}: " + (f"not in both: {', '.join(only[:5])}" if only else "another order")
        for key in was.keys() & now.keys():
            yield from _differences(f"{name}.{key}", was[key], now[key])
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, (old, new) in enumerate(zip(was, now, strict=True)):
            yield from _differences(f"{name}[{number}]", old, new)
    elif type(was) is not type(now) or was != now:
        yield f"{name}: {_short(now)}, not {_short(was)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."
