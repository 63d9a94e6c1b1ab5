"""Folders made by an attacker: refused by a named error, in under a second, with nothing outside touched."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepfast.core.errors import Damaged, FormatTooNew, NoCheckpoint, NotARun, StepfastError
from stepfast.files import strict_json
from stepfast.store.manifest import Manifest
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory
from tests.store import build

STEP = 100
CASES: dict[str, tuple[type[StepfastError], Callable[[RunDirectory, Path], object]]] = {}


def case(name: str, error: type[StepfastError] = Damaged) -> Callable[[Any], Any]:
    def register(attack: Callable[[RunDirectory, Path], object]) -> Any:
        assert name not in CASES
        CASES[name] = (error, attack)
        return attack

    return register


def model(run: RunDirectory) -> Path:
    return run.checkpoint_path(STEP) / "model.safetensors"


def manifest(run: RunDirectory) -> Path:
    return run.checkpoint_path(STEP) / "manifest.json"


def edit(name: str, change: Callable[[dict[str, Any]], object], error: type[StepfastError] = Damaged) -> None:
    """A manifest that says something else, with a digest that fits."""
    case(name, error)(lambda run, outside: build.edit_manifest(run, STEP, change))


def first_file(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda value: value["files"][0].update(changes)


def first_leaf(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda value: value["files"][0]["leaves"][0].update(changes)


# Paths that climb out, and names that are none.
for bad in ("../../outside/secret", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a\0b", "-rf", ".hidden", "x" * 201,
            "manifest.json", "\x1b]0;x\x07", "model\u202esrotcnet", 7, None):  # fmt: skip
    edit(f"file named {bad!a:.40}", first_file(name=bad))
for bad in ("a\0b", "a\x1b]0;x\x07", "../x", "/x", "", "x" * 513, "a\u2028b", ["a"]):
    edit(f"leaf named {bad!a:.40}", first_leaf(name=bad))
edit("key with NUL", first_leaf(key="a\0"))
edit("alias that climbs", lambda value: value.update(aliases={"../../x": "model.embed.weight"}))
edit("run id that climbs", lambda value: value.update(run_id="../../x"))

# Another place, another time.
edit("another run", lambda value: value.update(run_id="run-0002"))
edit("another step", lambda value: value.update(step=101))
edit("future format", lambda value: value.update(format=2), FormatTooNew)
edit("format 0", lambda value: value.update(format=0))
edit("format is a text", lambda value: value.update(format="1"))
edit("format is true", lambda value: value.update(format=True))
edit("no format", lambda value: value.pop("format"))
edit("no files", lambda value: value.pop("files"))
edit("files is an object", lambda value: value.update(files={}))
edit("a file is a number", lambda value: value.update(files=[1]))
edit("a leaf is a number", lambda value: value["files"][0].update(leaves=[1]))
edit("no digest", first_file(digest=""))
edit("leaf without digest", first_leaf(digest=""))

# Lying lengths and layouts.
edit("size 2^62", first_file(size=2**62))
edit("size 1 TiB", first_file(size=2**40))
edit("negative size", first_file(size=-1))
edit("size is a float", first_file(size=4237.0))
edit("leaf beyond the file", first_leaf(offset=2**50))
edit("negative offset", first_leaf(offset=-4096))
edit("shape overflows", first_leaf(shape=[2**40, 2**40]))
edit("negative shape", first_leaf(shape=[-4, -6]))
edit("unknown dtype", first_leaf(dtype="O"))
edit("other dtype than the header", first_leaf(dtype="I32"))
edit("other shape than the header", first_leaf(shape=[6, 4]))
edit("other key than the header", first_leaf(key="other"))
edit("strides of another rank", first_leaf(strides=[1]))
edit("leaf unknown to the manifest", lambda value: value["files"][0]["leaves"].pop(0))
edit("two leaves of one name", lambda value: value["files"][0]["leaves"][1].update(name="model.embed.weight"))
edit("two files of one name", lambda value: value["files"].append(dict(value["files"][2], name="LOOP.JSON")))
edit(
    "10,000 files",
    lambda value: value.update(files=[{"name": f"f{n}", "size": 0, "digest": "0" * 32} for n in range(10_000)]),
)


def header(run: RunDirectory, text: bytes, length: int | None = None) -> None:
    """A model file with this header, of the same size, and a manifest whose digest of it fits."""
    old = model(run).read_bytes()
    data = (len(text) if length is None else length).to_bytes(8, "little") + text
    data += old[len(data) :]
    build.overwrite(model(run), data)
    build.edit_manifest(run, STEP, first_file(digest=build.digest(data)))


def true_header(run: RunDirectory) -> dict[str, Any]:
    return dict(json.loads(model(run).read_bytes()[8:4096]))


for name, length in (("0", 0), ("2^40", 2**40), ("2^63", 2**63), ("2^64-1", 2**64 - 1), ("1", 1)):
    case(f"header length {name}")(lambda run, outside, length=length: header(run, b"{}", length))
case("header deep")(lambda run, outside: header(run, (b'{"a":' * 300 + b"1" + b"}" * 300).ljust(4088)))
case("header with a name twice")(lambda run, outside: header(run, b'{"a":1,"a":1}'.ljust(4088)))


@case("header with an overlap")
def _(run: RunDirectory, outside: Path) -> None:
    value = true_header(run)
    value["embed.weight"]["data_offsets"] = value["norm.count"]["data_offsets"]
    header(run, json.dumps(value).encode().ljust(4088))


@case("header with a hole")
def _(run: RunDirectory, outside: Path) -> None:
    value = true_header(run)
    del value["mask"]
    header(run, json.dumps(value).encode().ljust(4088))


# JSON that is none, or too much.
for name, data in {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "a name twice": b'{"format": 1, "format": 2}',
    "NaN": b'{"format": NaN}',
    "1e999": b'{"format": 1e999}',
    "huge integer": b'{"format": ' + b"9" * 100_000 + b"}",
    "depth 100,000": b'{"format":' + b"[" * 100_000,
    "byte order mark": b"\xef\xbb\xbf{}",
    "no UTF-8": b'{"format": 1, "x": "\xff\xfe"}',
    "surrogate": b'{"format": 1, "x": "\\ud800"}',
    "open string": b'{"' + b'\\"' * 1_000_000,
}.items():
    case(f"manifest: {name}")(lambda run, outside, data=data: build.overwrite(manifest(run), data))
    case(f"stepfast.json: {name}")(lambda run, outside, data=data: build.overwrite(run.path / "stepfast.json", data))
case("stepfast.json: newer", FormatTooNew)(
    lambda run, outside: build.overwrite(run.path / "stepfast.json", b'{"format": 9, "run_id": {}}')
)
case("stepfast.json: id climbs")(
    lambda run, outside: build.overwrite(run.path / "stepfast.json", b'{"format": 1, "parent": null, "run_id": "../x"}')
)


@case("loop.json deep, digest fits")
def _(run: RunDirectory, outside: Path) -> None:
    data = b"[" * 100_000
    build.overwrite(run.checkpoint_path(STEP) / "loop.json", data)
    build.edit_manifest(run, STEP, lambda value: value["files"][2].update(size=len(data), digest=build.digest(data)))


@case("loop.json of 1 TiB, size fits")
def _(run: RunDirectory, outside: Path) -> None:
    sparse(run.checkpoint_path(STEP) / "loop.json")
    build.edit_manifest(run, STEP, lambda value: value["files"][2].update(size=2**40))


# Things that are no files, no directories, or somewhere else.
def sparse(path: Path) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(2**40)


def bind(path: Path) -> None:
    path.unlink()
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make(path)


TARGETS: dict[str, Callable[[RunDirectory], Path]] = {
    "model file": model,
    "manifest": manifest,
    "loop.json": lambda run: run.checkpoint_path(STEP) / "loop.json",
    "stepfast.json": lambda run: run.path / "stepfast.json",
}
for label, target in TARGETS.items():
    case(f"{label}: FIFO")(lambda run, outside, target=target: replaced(target(run), os.mkfifo))
    case(f"{label}: socket")(lambda run, outside, target=target: bind(target(run)))
    case(f"{label}: directory")(lambda run, outside, target=target: replaced(target(run), os.mkdir))
    case(f"{label}: 1 TiB sparse")(lambda run, outside, target=target: sparse(target(run)))
    case(f"{label}: link to itself")(
        lambda run, outside, target=target: replaced(target(run), lambda path: path.symlink_to(path))
    )
    case(f"{label}: link to the same bytes outside")(lambda run, outside, target=target: move_out(target(run), outside))
    case(f"{label}: link to /dev/zero")(
        lambda run, outside, target=target: replaced(target(run), lambda path: path.symlink_to("/dev/zero"))
    )


def move_out(path: Path, outside: Path) -> None:
    path.rename(outside / path.name)
    path.symlink_to(outside / path.name)


case("checkpoint is a link outside")(lambda run, outside: move_out(run.checkpoint_path(STEP), outside))
case("checkpoint is a FIFO")(lambda run, outside: replaced(run.checkpoint_path(STEP), os.mkfifo))
case("checkpoint is an empty directory")(lambda run, outside: replaced(run.checkpoint_path(STEP), os.mkdir))
case("checkpoints/ is a link outside")(lambda run, outside: move_out(run.checkpoints_path, outside))
case("refs/ is a link outside")(lambda run, outside: move_out(run.path / "refs", outside))
case("refs/tags is a link outside")(lambda run, outside: move_out(run.path / "refs" / "tags", outside))
case("a tag is a FIFO")(lambda run, outside: os.mkfifo(run.path / "refs" / "tags" / "best"))
case("a tag is a link")(lambda run, outside: (run.path / "refs" / "tags" / "best").symlink_to("/etc/passwd"))
case("a tag is no JSON")(lambda run, outside: (run.path / "refs" / "tags" / "best").write_text("[" * 60_000))
case("a tag of a step that is none")(
    lambda run, outside: (run.path / "refs" / "tags" / "best").write_text('{"step": "../../x", "manifest_sha256": ""}')
)
case("a tag of a step that is not there", NoCheckpoint)(
    lambda run, outside: (run.path / "refs" / "tags" / "best").write_text(
        '{"step": 7, "manifest_sha256": "%s"}' % ("0" * 64)
    )
)
case("no stepfast.json")(lambda run, outside: (run.path / "stepfast.json").unlink())
case("the run is a file", NotARun)(lambda run, outside: replaced(run.path, Path.touch))
case("the run is a FIFO", NotARun)(lambda run, outside: replaced(run.path, os.mkfifo))
case("the run is empty", NotARun)(lambda run, outside: replaced(run.path, os.mkdir))
case("swapped files")(
    lambda run, outside: (
        model(run).rename(outside / "x"),
        (model(run).parent / "optimizer.safetensors").rename(model(run)),
        (outside / "x").rename(model(run).parent / "optimizer.safetensors"),
    )
)
if os.geteuid() == 0:
    case("a file of a stranger")(lambda run, outside: os.chown(model(run), 65534, 65534))


def use_everything(path: Path) -> None:
    """What a resume, `ls` and `verify` do."""
    run = RunDirectory.open(path)
    for name in run.tags():
        run.resolve(name)
    reader = CheckpointReader(run, run.resolve("latest"))
    reader.loop()
    for stored in reader.manifest.files:
        buffers = {leaf.key: memoryview(bytearray(leaf.size)) for leaf in stored.leaves}
        reader.read_into(stored, buffers)
    problems = reader.verify()
    if problems:
        raise Damaged(str(problems[0]))


def test_the_run_is_good_before_the_attack(tmp_path: Path) -> None:
    use_everything(build.make_run(tmp_path / "run", steps=(STEP,)).path)
    assert len(CASES) >= 40


@pytest.mark.parametrize("name", CASES)
def test_refused(tmp_path: Path, name: str) -> None:
    error, attack = CASES[name]
    run = build.make_run(tmp_path / "run", steps=(STEP,))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("precious")
    attack(run, outside)
    before = build.tree_digest(tmp_path)
    start = time.perf_counter()
    with pytest.raises(error) as caught:
        use_everything(run.path)
    assert time.perf_counter() - start < 1
    assert build.tree_digest(tmp_path) == before
    assert str(caught.value).isprintable() or "\n\nhint: " in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_bomb_of_leaves_is_refused_before_it_is_built(tmp_path: Path) -> None:
    run = build.make_run(tmp_path / "run", steps=(STEP,))
    leaf = b'{"name":"x"},'
    build.overwrite(manifest(run), b'{"format":1,"files":[{"leaves":[' + leaf * (3 << 20))
    start = time.perf_counter()
    with pytest.raises(Damaged, match="allowed"):
        run.manifest(STEP)
    assert time.perf_counter() - start < 1


def test_unknown_fields_do_no_harm(tmp_path: Path) -> None:
    run = build.make_run(tmp_path / "run", steps=(STEP,))
    build.edit_manifest(run, STEP, lambda value: value.update(later={"a": [1]}))
    use_everything(run.path)
    assert run.manifest(STEP).unknown == {"later": {"a": [1]}}
    again = Manifest.from_json(run.manifest(STEP).to_json())
    assert again.unknown == {"later": {"a": [1]}}
    assert strict_json.loads(again.to_json(), max_bytes=1 << 20)["later"] == {"a": [1]}
