"""Saves through a real agent: what comes back, what is shared, what fails and what then still works."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepfast.store.manifest import Manifest
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory
from stepfast.wire import messages
from stepfast.wire.messages import (
    Committed,
    Drain,
    Drained,
    Event,
    Failed,
    Free,
    Refused,
    Reserve,
    Slots,
    Snapshot,
)
from tests.agent.conftest import Start
from tests.agent.scene import WAIT_S, Files, events, lay_out

pytestmark = pytest.mark.slow


def files(step: int) -> Files:
    return {
        "model.safetensors": {"w": bytes([step]) * 300_000, "b": b"bias", "none": b""},
        "loop.json": b'{"step": %d}' % step,
    }


def read_back(path: Path, step: int) -> dict[str, bytes]:
    run = RunDirectory.open(path)
    assert CheckpointReader(run, step).verify() == []
    return {stored.name: (run.checkpoint_path(step) / stored.name).read_bytes() for stored in run.manifest(step).files}


def test_a_snapshot_becomes_a_checkpoint_with_every_byte(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run"
    one = start()
    one.open(path)
    one.reserve(1 << 20, 1 << 20)
    laid = [lay_out(step, files(step), run_id=one.run_id) for step in (5, 6)]
    one.send(laid[0], 0)
    one.send(laid[1], 1)
    one.channel.send(Event(fields={"event": "hello", "n": 1}))
    one.channel.send(Drain(id=77))
    seen: list[messages.Message] = []
    while not isinstance(message := one.channel.recv(WAIT_S), Drained):
        seen.append(message)
    assert message.id == 77
    assert [type(one) for one in seen] == [Free, Committed, Free, Committed]
    first, second = (one for one in seen if isinstance(one, Committed))
    assert (first.step, second.step) == (5, 6)
    run = RunDirectory.open(path)
    assert run.steps() == [5, 6]
    assert run.resolve("latest") == 6
    for step, sent, got in ((5, laid[0], first), (6, laid[1], second)):
        assert read_back(path, step) == sent.contents
        manifest = run.manifest(step)
        assert run.manifest_sha256(step) == got.manifest_sha256
        assert got.bytes_written == manifest.size_bytes
        assert manifest.k1_s is not None
        assert 0 < manifest.k1_s <= got.k1_s < 10
        assert manifest.run_id == one.run_id
    assert run.manifest(5).parent is None
    assert run.manifest(6).parent == {"step": 5, "manifest_sha256": first.manifest_sha256}
    assert one.bye() == 0
    assert [event["event"] for event in events(path)] == ["opened", "commit", "commit", "hello", "closed"]
    commit = events(path)[1]
    assert (commit["step"], commit["manifest_sha256"]) == (5, first.manifest_sha256)
    assert all("time" in event for event in events(path))
    assert not (path / "agent.sock").exists()
    assert (path / "agent.log").read_bytes() == b""


def test_what_did_not_change_costs_nothing_on_disk(start: Start, tmp_path: Path) -> None:
    one = start()
    one.open(tmp_path / "run")
    one.reserve(32 << 20)
    frozen = {str(n): os.urandom(1 << 20) for n in range(24)}
    sizes = []
    for step in (1, 2):
        moving = {"a": os.urandom(500_000), "b": os.urandom(400_000)}
        one.send(
            lay_out(
                step,
                {"model-frozen.safetensors": frozen, "model.safetensors": moving, "loop.json": b"{}"},
                run_id=one.run_id,
            )
        )
        committed = one.expect(Committed)
        sizes.append(committed.bytes_written)
        assert ("model-frozen.safetensors" in committed.linked_files) == (step == 2)
        assert "model.safetensors" not in committed.linked_files
    run = RunDirectory.open(tmp_path / "run")
    seen: set[int] = set()
    cost = []
    for step in (1, 2):
        new = [file.stat() for file in run.checkpoint_path(step).iterdir() if file.stat().st_ino not in seen]
        seen |= {facts.st_ino for facts in new}
        cost.append(sum(facts.st_blocks for facts in new))
    assert cost[1] < 0.05 * cost[0], cost
    assert sizes[1] < 0.05 * sizes[0]
    read_back(tmp_path / "run", 2)


def test_one_byte_of_difference_is_written(start: Start, tmp_path: Path) -> None:
    """Equal size and equal first leaves are not enough to share a file."""
    one = start()
    one.open(tmp_path / "run")
    one.reserve(1 << 20)
    last = bytearray(100_000)
    for step in (1, 2):
        last[-1] = step
        laid = lay_out(
            step,
            {"model.safetensors": {"a": bytes(100_000), "z": bytes(last)}, "loop.json": b"{}"},
            run_id=one.run_id,
        )
        one.send(laid)
        committed = one.expect(Committed)
        assert committed.linked_files == ([] if step == 1 else ["loop.json"])
        assert read_back(tmp_path / "run", step) == laid.contents


def test_files_that_are_not_in_the_slot_come_from_the_checkpoint_before(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run"
    one = start()
    one.open(path)
    one.reserve(1 << 20)
    one.send(lay_out(1, {"metrics-00000000.bin": b"m" * 5000, "loop.json": b"1"}, run_id=one.run_id))
    one.expect(Committed)
    segment = RunDirectory.open(path).manifest(1).file("metrics-00000000.bin")
    assert segment is not None
    one.send(lay_out(2, {"loop.json": b"2"}, run_id=one.run_id, linked=[segment]), linked=["metrics-00000000.bin"])
    assert one.expect(Committed).linked_files == ["metrics-00000000.bin"]
    assert read_back(path, 2) == {"loop.json": b"2", "metrics-00000000.bin": b"m" * 5000}

    from dataclasses import replace

    for wrong in (
        replace(segment, digest="0" * 32),
        replace(segment, size=4999),
        replace(segment, name="other.bin"),
    ):
        one.send(lay_out(3, {"loop.json": b"3"}, run_id=one.run_id, linked=[wrong]), linked=[wrong.name])
        failed = one.expect(Failed)
        assert (failed.step, failed.code) == (3, "damaged")
        assert wrong.name in failed.message
    assert RunDirectory.open(path).steps() == [1, 2]
    one.bye()
    # Another agent, which did not see these written, reads before it shares.
    two = start()
    two.open(path)
    two.reserve(1 << 20)
    two.send(lay_out(3, {"loop.json": b"3"}, run_id=one.run_id, linked=[segment]), linked=["metrics-00000000.bin"])
    assert two.expect(Committed).linked_files == ["metrics-00000000.bin"]
    two.bye()
    target = RunDirectory.open(path).checkpoint_path(3) / "metrics-00000000.bin"
    target.chmod(0o644)
    with target.open("r+b") as file:
        file.write(b"damage")
    three = start()
    three.open(path)
    three.reserve(1 << 20)
    three.send(lay_out(4, {"loop.json": b"3"}, run_id=one.run_id, linked=[segment]), linked=["metrics-00000000.bin"])
    assert three.expect(Failed).code == "damaged"


def test_a_damaged_file_is_not_shared_when_we_have_its_bytes(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run"
    one = start()
    one.open(path)
    one.reserve(1 << 20)
    one.send(lay_out(1, files(1), run_id=one.run_id))
    one.expect(Committed)
    one.bye()
    target = RunDirectory.open(path).checkpoint_path(1) / "model.safetensors"
    target.chmod(0o644)
    with target.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"X")
    two = start()
    two.open(path)
    two.reserve(1 << 20)
    laid = lay_out(2, files(1), run_id=one.run_id)
    two.send(laid)
    assert two.expect(Committed).linked_files == ["loop.json"]
    assert read_back(path, 2) == laid.contents


def test_a_named_save_is_tagged_physically_its_own_and_survives_retention(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run"
    one = start()
    one.open(path, keep_newest=2)
    one.reserve(1 << 20)
    tidied: dict[int, list[int]] = {}
    for step in range(1, 7):
        one.send(lay_out(step, files(9), run_id=one.run_id, name="best" if step == 2 else None))
        committed = one.expect(Committed)
        tidied[step] = committed.tidied
        assert bool(committed.linked_files) == (step not in (1, 2))
    assert tidied == {1: [], 2: [], 3: [1], 4: [], 5: [3], 6: [4]}
    run = RunDirectory.open(path)
    assert run.steps() == [2, 5, 6]
    assert run.tags() == {"best": 2}
    one.send(lay_out(7, files(9), run_id=one.run_id, name="latest"))
    failed = one.expect(Failed)
    assert (failed.code, failed.step) == ("usage", 7)
    assert RunDirectory.open(path).steps() == [2, 5, 6], "a save that failed is not there"
    assert one.bye() == 0
    assert [event["steps"] for event in events(path) if event["event"] == "tidied"] == [[1], [3], [4]]
    assert [event["step"] for event in events(path) if event["event"] == "failed"] == [7]


def test_everything_is_written_anew_now_and_then(start: Start, tmp_path: Path) -> None:
    """One physical copy must not carry a whole run. The count goes on over restarts."""
    one = start()
    one.open(tmp_path / "run")
    one.reserve(1 << 20)
    is_shared = []
    for step in range(1, 23):
        if step == 10:
            one.bye()
            one = start()
            one.open(tmp_path / "run")
            one.reserve(1 << 20)
        one.send(lay_out(step, {"loop.json": b"same"}, run_id=one.run_id))
        is_shared.append(bool(one.expect(Committed).linked_files))
    assert [step for step, shared in enumerate(is_shared, 1) if not shared] == [1, 20]


def test_later_in_the_same_step_replaces_and_the_same_again_is_committed(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run"
    one = start()
    one.open(path)
    one.reserve(1 << 20)
    one.send(lay_out(4, files(4), run_id=one.run_id))
    one.expect(Committed)
    one.send(lay_out(5, files(5), run_id=one.run_id))
    first = one.expect(Committed)
    one.send(lay_out(5, files(5), run_id=one.run_id))
    assert one.expect(Committed).manifest_sha256 == first.manifest_sha256
    later = lay_out(5, files(55), run_id=one.run_id, revision=1)
    one.send(later)
    assert one.expect(Committed).revision == 1
    assert read_back(path, 5) == later.contents
    parent = RunDirectory.open(path).manifest(5).parent
    assert parent is not None
    assert parent["step"] == 4
    one.send(lay_out(5, files(56), run_id=one.run_id, revision=1))
    assert "branch" in one.expect(Failed).hint
    assert read_back(path, 5) == later.contents


@pytest.mark.parametrize("what", ["unaligned", "overlap", "beyond", "missing", "size", "not a draft", "slot", "twice"])
def test_a_snapshot_that_contradicts_itself_is_refused_and_its_slot_freed(
    start: Start, tmp_path: Path, what: str
) -> None:
    one = start()
    one.open(tmp_path / "run")
    one.reserve(1 << 20)
    laid = lay_out(1, files(1), run_id=one.run_id)
    spans, draft, slot = list(laid.spans), laid.draft.to_json(), 0
    last = spans[-1]
    if what == "unaligned":
        spans[-1] = messages.Span(name=last.name, offset=last.offset + 8, size=last.size)
    elif what == "overlap":
        spans[-1] = messages.Span(name=last.name, offset=0, size=last.size)
    elif what == "beyond":
        spans[-1] = messages.Span(name=last.name, offset=1 << 20, size=last.size)
    elif what == "missing":
        spans.pop()
    elif what == "size":
        spans[-1] = messages.Span(name=last.name, offset=last.offset, size=last.size + 1)
    elif what == "twice":
        spans.append(messages.Span(name=last.name, offset=1 << 19, size=last.size))
    elif what == "not a draft":
        draft = draft.replace(b'"step": 1', b'"step": 2')
    elif what == "slot":
        slot = 1
    one.channel.send(Snapshot(slot=slot, draft=draft, spans=spans))
    if what != "slot":
        assert one.expect(Free).slot == 0
    assert one.expect(Failed).code == "usage"
    one.send(laid)
    assert one.expect(Committed).step == 1
    names = os.listdir(tmp_path / "run" / "checkpoints")
    assert names == ["step-00000001"], "a failed save left something"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = tmp_path / "disk"
    path.mkdir()
    if libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, b"size=8m") != 0:
        pytest.skip(f"no file system can be mounted here: {os.strerror(ctypes.get_errno())}")
    yield path
    assert libc.umount2(os.fsencode(path), 0) == 0, os.strerror(ctypes.get_errno())


def test_a_full_disk_fails_one_save_and_loses_nothing(start: Start, small_disk: Path) -> None:
    path = small_disk / "run"
    one = start()
    one.open(path)
    one.reserve(8 << 20)
    big: Files = {"model.safetensors": {"w": os.urandom(5 << 20)}, "loop.json": b"{}"}
    good = lay_out(1, big, run_id=one.run_id)
    one.send(good)
    one.expect(Committed)
    full = lay_out(2, {"model.safetensors": {"w": os.urandom(5 << 20)}, "loop.json": b"{}"}, run_id=one.run_id)
    one.send(full)
    assert one.expect(Free).slot == 0
    failed = one.expect(Failed)
    assert (failed.step, failed.code) == (2, "storage-failed")
    assert str(path) in failed.message
    assert f"{full.draft.size_bytes:,} bytes" in failed.message
    free = shutil.disk_usage(path).free
    assert f"{free:,} are free" in failed.message, failed.message
    assert "free space" in failed.hint
    assert os.listdir(path / "checkpoints") == ["step-00000001"]
    assert read_back(path, 1) == good.contents
    small = lay_out(3, files(3), run_id=one.run_id)
    one.send(small)
    assert one.expect(Committed).step == 3
    assert read_back(path, 3) == small.contents
    assert one.bye() == 0


def test_new_slots_come_when_the_older_ones_are_on_disk(start: Start, tmp_path: Path) -> None:
    one = start()
    one.open(tmp_path / "run")
    one.reserve(1 << 20, 5000)
    assert [slot.size for slot in one.slots] == [1 << 20, 1 << 20]
    one.send(lay_out(1, files(1), run_id=one.run_id), 1)
    one.channel.send(Reserve(sizes=[2 << 20]))
    kinds = []
    while not isinstance(message := one.channel.recv(WAIT_S), Slots):
        kinds.append(type(message))
    assert Free in kinds, "slots were given up while they were being written"
    old = one.slots
    one.take(message)
    for slot in old:
        slot.close()
    assert [slot.size for slot in one.slots] == [2 << 20]
    one.send(lay_out(2, files(2), run_id=one.run_id))
    one.expect(Committed)
    assert read_back(tmp_path / "run", 1) == lay_out(1, files(1)).contents


def test_slots_nobody_has_room_for_are_refused_and_smaller_ones_come(start: Start, tmp_path: Path) -> None:
    one = start()
    one.open(tmp_path / "run")
    for sizes, code in (([1 << 50], "storage-failed"), ([], "usage"), ([4096] * 17, "usage")):
        one.channel.send(Reserve(sizes=sizes))
        refused = one.channel.recv(WAIT_S)
        assert isinstance(refused, Refused)
        assert refused.code == code
    one.reserve(4096)
    assert len(one.slots) == 1


def test_the_draft_is_only_a_draft(start: Start, tmp_path: Path) -> None:
    """Digests, run and times are the agent's to say."""
    one = start()
    one.open(tmp_path / "run")
    one.reserve(1 << 20)
    one.send(lay_out(1, files(1), run_id="another-run"))
    one.expect(Committed)
    manifest = RunDirectory.open(tmp_path / "run").manifest(1)
    assert isinstance(manifest, Manifest)
    assert manifest.run_id == one.run_id


def test_more_names_are_all_durable_tags_before_the_save_is_told(start: Start, tmp_path: Path) -> None:
    one = start()
    one.open(tmp_path / "run")
    one.reserve(1 << 20)
    one.send(lay_out(1, files(1), run_id=one.run_id, name="best"), names=["early", "paper"])
    one.expect(Committed)
    assert RunDirectory.open(tmp_path / "run").tags() == {"best": 1, "early": 1, "paper": 1}
    one.send(lay_out(2, files(2), run_id=one.run_id), names=["latest"])
    assert one.expect(Failed).code == "usage"
    assert RunDirectory.open(tmp_path / "run").steps() == [1], "refused before anything was written"


def test_the_last_good_copy_of_a_shared_file_stays_when_the_shared_one_is_damaged(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run"
    one = start()
    one.open(path, keep_newest=2)
    one.reserve(1 << 20)

    def save(step: int, name: str | None = None) -> Committed:
        frozen: Files = {"model-frozen.safetensors": {"w": b"frozen" * 9000}, "loop.json": b"%d" % step}
        one.send(lay_out(step, frozen, run_id=one.run_id, name=name))
        return one.expect(Committed)

    run = RunDirectory.open(path)
    save(1)
    save(2, name="own-copy")  # written anew; from here on it is an ordinary one
    os.unlink(path / "refs" / "tags" / "own-copy")
    save(3, name="own-copy")
    os.unlink(path / "refs" / "tags" / "own-copy")
    assert "model-frozen.safetensors" in save(4).linked_files  # read back, and found whole
    assert run.steps() == [3, 4]
    save(5, name="own-copy")
    os.unlink(path / "refs" / "tags" / "own-copy")
    assert save(6).tidied == [4]
    assert run.steps() == [5, 6]
    file = run.checkpoint_path(6) / "model-frozen.safetensors"
    assert file.stat().st_nlink == 2
    # 5 gets a copy of its own, as if it had been written before 6; then rot comes, which leaves the times.
    own = run.checkpoint_path(5) / "model-frozen.safetensors"
    content, facts = own.read_bytes(), own.stat()
    own.unlink()
    own.write_bytes(content)
    file.chmod(0o644)
    with file.open("r+b") as opened:
        opened.write(b"X")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert save(7).tidied == [], "5 is the last one that is whole"
    read_back(path, 5)
    assert [event["steps"] for event in events(path) if event["event"] == "damaged"] == [[6, 7]]
    assert "model-frozen.safetensors" not in save(8).linked_files
    read_back(path, 8)
    one.bye()
