"""The golden store of format 1: still written byte for byte, still read, also without Stepfast.

`python -m tests.store.test_golden DIR` writes it; it is never written anew for format 1.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open

from stepfast.store import ledger
from stepfast.store.manifest import Parent
from stepfast.store.progress import ProgressRow, ProgressWriter, read_progress
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory
from stepfast.store.staging import Staging
from tests.store import build

GOLDEN = Path(__file__).parent / "golden" / "format-1"
NUMPY = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "u1", "C128": "<c16"}


def write_golden(path: Path) -> None:
    run = RunDirectory.create(path, build.RUN_ID)
    first = build.commit(run, 100, reasons=("steps", "epoch-end"), k1_s=1.5)
    files = build.files_of(200)
    parts = [
        build.tensor_file("model-00001-of-00002.safetensors", {"a": np.ones(3, np.float32)}, "model."),
        build.tensor_file("model-00002-of-00002.safetensors", {"b": np.zeros((), np.float64)}, "model."),
    ]
    metrics = build.files_of(100)[3]
    staging = Staging.begin(run, 200, "golden")
    for stored, data in [*parts, files[2]]:
        staging.write(stored, [memoryview(data)])
    staging.link(metrics[0], 100)
    second = staging.commit(
        build.manifest_of(
            200,
            [*parts, files[2], metrics],
            aliases={},
            parent=Parent(step=100, manifest_sha256=first),
            revision=1,
            finished="epochs",
            name="best",
            git_commit="0123abc",
        )
    )
    run.set_tag("best", 200)
    ledger.append(run.ledger_path, {"event": "commit", "step": 200, "manifest_sha256": second})
    progress = ProgressWriter(run.progress_path)
    progress.append(ProgressRow(step=1, epoch=0, batch=1, loss=0.5, batch_digest=bytes(range(16))))
    progress.append(ProgressRow(step=2, epoch=0, batch=2, flags=4, values_digest=b"v" * 16))
    progress.close()
    (run.path / ".gitignore").unlink()  # else the golden store itself would be ignored


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_format_1_is_written_byte_for_byte(tmp_path: Path) -> None:
    write_golden(tmp_path / "run")
    assert content(tmp_path / "run") == content(GOLDEN)


def test_format_1_is_read() -> None:
    before = content(GOLDEN)
    run = RunDirectory.open(GOLDEN)
    assert run.steps() == [100, 200]
    assert run.resolve("best") == run.resolve("latest") == 200
    for step in run.steps():
        reader = CheckpointReader(run, step)
        assert reader.verify() == []
        assert reader.loop() == {"metric_names": ["loss"], "step": step}
    manifest = run.manifest(200)
    assert manifest.parent == {"step": 100, "manifest_sha256": run.manifest_sha256(100)}
    assert (manifest.revision, manifest.finished, manifest.name) == (1, "epochs", "best")
    assert run.manifest(100).aliases == {"model.head.weight": "model.embed.weight"}
    events, damaged = ledger.read(run.ledger_path)
    assert damaged == 0
    assert events[0]["manifest_sha256"] == run.manifest_sha256(200)
    rows = read_progress(run.progress_path)
    assert rows[1].batch_digest == bytes(range(16))
    assert (rows[2].flags, rows[2].loss, rows[2].session) == (4, None, 1)
    assert content(GOLDEN) == before


def test_json_and_numpy_alone_read_it() -> None:
    """No line of Stepfast, no safetensors library: only what the format page says."""
    checkpoint = GOLDEN / "checkpoints" / "step-00000100"
    manifest = json.loads((checkpoint / "manifest.json").read_text("utf-8"))
    leaves = {}
    for file in manifest["files"]:
        data = (checkpoint / file["name"]).read_bytes()
        assert len(data) == file["size"]
        for leaf in file.get("leaves", []):
            raw = data[leaf["offset"] : leaf["offset"] + leaf["size"]]
            leaves[leaf["name"]] = np.frombuffer(raw, NUMPY[leaf["dtype"]]).reshape(leaf["shape"])
    np.testing.assert_array_equal(leaves["model.embed.weight"], np.arange(24).reshape(4, 6) + 100)
    assert leaves["model.phase"].tolist() == [1 + 2j, 100j]
    assert leaves["model.norm.count"] == 100
    assert leaves["optimizer.exp_avg"].tolist() == [100.0] * 7


def test_the_library_and_the_index_of_the_ecosystem_read_it() -> None:
    checkpoint = GOLDEN / "checkpoints" / "step-00000200"
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text("utf-8"))
    state = {}
    for key, file in index["weight_map"].items():
        with safe_open(checkpoint / file, "np") as part:
            state[key] = part.get_tensor(key)
    assert state["a"].tolist() == [1, 1, 1]
    assert state["b"].shape == ()
    with safe_open(checkpoint.parent / "step-00000100" / "model.safetensors", "np") as whole:
        assert set(whole.keys()) == {"embed.weight", "norm.count", "norm.empty", "phase", "mask"}
        assert whole.get_tensor("phase").tolist() == [[1, 2], [0, 100]]


if __name__ == "__main__":
    write_golden(Path(sys.argv[1]))
    os.utime(sys.argv[1])
