"""Small runs for the tests of the store, made with the store's own writer. Not a test."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from stepfast.core.words import Leaf, StoredFile
from stepfast.files import strict_json
from stepfast.store.manifest import Manifest, Parent
from stepfast.store.run_directory import RunDirectory
from stepfast.store.safetensors import build_header, size_of
from stepfast.store.staging import Staging

RUN_ID = "run-0001"
DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "U8": np.uint8, "F16": np.float16, "C128": complex}

Arrays = Mapping[str, npt.NDArray[Any]]


def digest(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def dtype_of(array: npt.NDArray[Any]) -> str:
    return next(name for name, dtype in DTYPES.items() if array.dtype == dtype)


def tensor_file(name: str, arrays: Arrays, prefix: str = "") -> tuple[StoredFile, bytes]:
    leaves = [(key, dtype_of(array), array.shape) for key, array in arrays.items()]
    header, offsets, size = build_header(leaves, {"format": "pt"})
    data = bytearray(size)
    data[: len(header)] = header
    entries = []
    for (key, dtype, shape), offset in zip(leaves, offsets, strict=True):
        raw = arrays[key].tobytes()
        data[offset : offset + len(raw)] = raw
        entry = Leaf(
            name=prefix + key,
            key=key,
            dtype=dtype,
            shape=shape,
            offset=offset,
            size=size_of(dtype, shape),
            digest=digest(raw),
        )
        entries.append(entry)
    return StoredFile(name=name, size=size, leaves=tuple(entries), digest=digest(bytes(data))), bytes(data)


def plain_file(name: str, data: bytes) -> tuple[StoredFile, bytes]:
    return StoredFile(name=name, size=len(data), digest=digest(data)), data


def files_of(step: int) -> list[tuple[StoredFile, bytes]]:
    """What a checkpoint of a step holds in these tests."""
    model = {
        "embed.weight": np.arange(24, dtype=np.float32).reshape(4, 6) + step,
        "norm.count": np.array(step, dtype=np.int64),
        "norm.empty": np.zeros((0, 3), dtype=np.float32),
        "phase": np.array([1 + 2j, step * 1j]),
        "mask": np.arange(5, dtype=np.uint8),
    }
    optimizer = {"exp_avg": np.full(7, step, dtype=np.float64)}
    loop = strict_json.dumps({"metric_names": ["loss"], "step": step})
    return [
        tensor_file("model.safetensors", model, "model."),
        tensor_file("optimizer.safetensors", optimizer, "optimizer."),
        plain_file("loop.json", loop),
        plain_file("metrics-00000000.bin", bytes(24)),
    ]


def manifest_of(step: int, files: list[tuple[StoredFile, bytes]], **fields: Any) -> Manifest:
    values: dict[str, Any] = {
        "run_id": RUN_ID,
        "step": step,
        "epoch": step // 100,
        "batch": step % 100,
        "reasons": ("steps",),
        "created": "2026-01-31T12:00:00Z",
        "k0_s": 0.25,
        "files": tuple(stored for stored, _ in files),
        "aliases": {"model.head.weight": "model.embed.weight"},
        "versions": {"stepfast": "0.1.0"},
        "hyperparameters": {"lr": 0.001, "layers": [1, 2]},
        "determinism": {"deterministic": True},
    }
    return Manifest(**{**values, **fields})


def commit(run: RunDirectory, step: int, files: list[tuple[StoredFile, bytes]] | None = None, **fields: Any) -> str:
    files = files_of(step) if files is None else files
    if any(stored.name == "model.safetensors" for stored, _ in files) is False:
        fields.setdefault("aliases", {})
    staging = Staging.begin(run, step, "a1")
    for stored, data in files:
        staging.write(replace(stored, digest=""), [memoryview(data)])
    return staging.commit(manifest_of(step, files, **fields))


def make_run(path: Path, steps: tuple[int, ...] = (100, 200)) -> RunDirectory:
    run = RunDirectory.create(path, RUN_ID)
    parent = None
    for step in steps:
        parent = Parent(step=step, manifest_sha256=commit(run, step, parent=parent))
    return run


def tree_digest(path: Path) -> str:
    """Names, kinds, modes and content of all below a directory; special files are not opened."""
    total = hashlib.sha256()
    for here, directories, files in os.walk(path):
        directories.sort()
        for name in sorted([*directories, *files]):
            entry = Path(here, name)
            facts = entry.lstat()
            total.update(f"{entry.relative_to(path)} {facts.st_mode:o} {facts.st_size}\n".encode("utf-8", "replace"))
            if stat.S_ISREG(facts.st_mode) and facts.st_size < 1 << 24:
                total.update(entry.read_bytes())
            elif stat.S_ISLNK(facts.st_mode):
                total.update(os.readlink(entry).encode())
    return total.hexdigest()


def overwrite(path: Path, data: bytes) -> None:
    """What rot or an attacker does: new content under an old name."""
    path.chmod(0o600)
    path.write_bytes(data)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    overwrite(path, bytes(data))


def edit_manifest(run: RunDirectory, step: int, change: Any, *, sign: bool = True) -> None:
    """Change the JSON of a manifest and give it a digest that fits, as an attacker would."""
    path = run.checkpoint_path(step) / "manifest.json"
    value = strict_json.loads(path.read_bytes(), max_bytes=1 << 25)
    change(value)
    if sign:
        value.pop("digest", None)
        value["digest"] = digest(strict_json.dumps(value, indent=None))
    overwrite(path, strict_json.dumps(value))
