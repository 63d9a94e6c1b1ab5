"""`stepfast show`: one checkpoint, from its manifest and its loop.json."""

from __future__ import annotations

import json
from typing import Any

from stepfast.cli.output import put, put_json, put_lines, put_table, talk
from stepfast.cli.places import age_of, local_time, open_at, shown_place
from stepfast.core.errors import Damaged
from stepfast.report import lines
from stepfast.report.plain import escaped, table
from stepfast.store.manifest import Manifest
from stepfast.store.reading import CheckpointReader


def show(place: str, *, as_json: bool) -> int:
    """Where it stands, why it was made, what is in it."""
    run, which = open_at(place)
    reader = CheckpointReader(run, run.resolve(which or "latest"))
    manifest = reader.manifest
    tags = [name for name, step in run.tags().items() if step == manifest.step]
    try:
        settings = _settings(reader)
    except Damaged as error:
        settings = {}
        talk(f"damaged: {escaped(error.message)}", style="red")
    if as_json:
        content = json.loads(manifest.to_json())
        more = {"path": str(reader.path), "manifest_sha256": reader.manifest_sha256, "tags": tags, "settings": settings}
        put_json({"run": str(run.path), **more, "manifest": content})
        return 0
    put(f"{escaped(run.path)}, step {lines.count(manifest.step)}", bold=True)
    put_lines(_pairs(_facts(manifest, tags)))
    put()
    _put_files(manifest)
    if settings:
        put()
        put("settings", bold=True)
        put_lines(_pairs([(key, json.dumps(value)) for key, value in settings.items()]))
    return 0


def _settings(reader: CheckpointReader) -> dict[str, Any]:
    loop = reader.loop()
    settings = loop.get("settings") if isinstance(loop, dict) else None
    return settings if isinstance(settings, dict) else {}


def _facts(manifest: Manifest, tags: list[str]) -> list[tuple[str, str]]:
    epoch, batch = shown_place(manifest)
    waited = f"training waited {lines.duration(manifest.k0_s)}"
    durable = "" if manifest.k1_s is None else f", durable after {lines.duration(manifest.k1_s)}"
    found = [
        ("epoch", epoch),
        ("next batch", batch),
        ("reason", ", ".join(manifest.reasons) or "–"),
        ("created", f"{local_time(manifest.created)}, {lines.age(age_of(manifest.created))}"),
        ("size", f"{lines.size(manifest.size_bytes)} in {lines.counted(len(manifest.files), 'file')}"),
        ("cost", waited + durable),
        ("tag", ", ".join(tags)),
        ("finished", manifest.finished or ""),
        ("parent", f"step {lines.count(manifest.parent['step'])}" if manifest.parent else ""),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
        ("determinism", ", ".join(f"{name} {value}" for name, value in manifest.determinism.items())),
        ("git commit", manifest.git_commit or ""),
        ("hyperparameters", json.dumps(manifest.hyperparameters) if manifest.hyperparameters else ""),
    ]
    return [(name, value) for name, value in found if value]


def _put_files(manifest: Manifest) -> None:
    rows = []
    for stored in manifest.files:
        rows.append((stored.name, "", "", lines.size(stored.size), stored.digest))
        for leaf in stored.leaves:
            shape = "×".join(map(str, leaf.shape)) or "one number"
            strides = "" if leaf.strides is None else f", strides {'×'.join(map(str, leaf.strides))}"
            rows.append((f"  {leaf.name}", leaf.dtype, shape + strides, lines.size(leaf.size), leaf.digest))
    put_table(table(("file, leaves", "dtype", "shape", "size", "digest (xxh3, 128 bits)"), rows, right=frozenset((3,))))
    for name, target in manifest.aliases.items():
        put(escaped(f"  {name} is tied to {target}"))


def _pairs(pairs: list[tuple[str, str]]) -> list[str]:
    width = max(len(escaped(name)) for name, _ in pairs)
    return [f"  {escaped(name):<{width}}  {escaped(value)}" for name, value in pairs]
