"""Persisting without processes: digests in one pass, what is shared, and a disk that fails at each point."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stepfast.core import points
from stepfast.core.errors import StorageFailed
from stepfast.core.words import Leaf
from stepfast.persist.digest import FileDigest
from stepfast.persist.persist import Persisted, persist
from stepfast.persist.previous import Previous, ReadBack
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory
from tests.agent.scene import Laid, lay_out


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", "abc")


def bring(run: RunDirectory, laid: Laid, previous: Previous | None = None, *, fresh: bool = False) -> Persisted:
    return persist(
        run,
        memoryview(laid.data),
        laid.spans,
        laid.draft,
        [],
        previous=previous,
        incarnation="1-1",
        received_s=time.monotonic(),
        fresh_copies=fresh,
    )


@given(
    sizes=st.lists(st.integers(0, 70), max_size=8),
    head=st.integers(0, 20),
    tail=st.integers(0, 20),
    stops=st.integers(0, 9),
    piece=st.sampled_from([1, 7, 64, 1 << 20]),
)
def test_one_pass_gives_the_digests_of_the_file_and_of_each_leaf(
    sizes: list[int], head: int, tail: int, stops: int, piece: int
) -> None:
    data = os.urandom(head + sum(sizes) + tail)
    leaves, at = [], head
    for number, size in enumerate(sizes):
        leaves.append(Leaf(name=str(number), key=str(number), dtype="U8", shape=(size,), offset=at, size=size))
        at += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepfast.persist.digest._PIECE_BYTES", piece)
        digest = FileDigest(memoryview(data), leaves[::-1])
        for _ in range(stops):  # stopping to compare changes nothing
            digest.next_leaf()
        assert digest.finish() == xxhash.xxh3_128_hexdigest(data)
    assert digest.leaf_digests == {
        leaf.name: xxhash.xxh3_128_hexdigest(data[leaf.offset : leaf.offset + leaf.size]) for leaf in leaves
    }


def test_a_file_longer_than_a_piece_of_writing_is_whole(run: RunDirectory) -> None:
    laid = lay_out(1, {"model.safetensors": {"w": os.urandom((33 << 20) + 123), "v": os.urandom(9)}})
    facts = bring(run, laid)
    assert facts.bytes_written == run.manifest(1).size_bytes
    assert CheckpointReader(run, 1).verify() == []
    assert (run.checkpoint_path(1) / "model.safetensors").read_bytes() == laid.contents["model.safetensors"]


def test_shared_files_are_one_file_on_disk_and_fresh_ones_are_not(run: RunDirectory) -> None:
    def inode(step: int) -> int:
        return (run.checkpoint_path(step) / "a.bin").stat().st_ino

    bring(run, lay_out(1, {"a.bin": b"a" * 9000}))
    before = Previous.read(run, 1, ReadBack())
    assert bring(run, lay_out(2, {"a.bin": b"a" * 9000}), before).linked_files == ("a.bin",)
    assert bring(run, lay_out(3, {"a.bin": b"a" * 9000}), before, fresh=True).linked_files == ()
    assert inode(1) == inode(2) != inode(3)


@pytest.mark.parametrize("change", ["name", "dtype", "strides", "bytes"])
def test_leaves_that_differ_in_anything_are_not_shared(run: RunDirectory, change: str) -> None:
    from dataclasses import replace

    bring(run, lay_out(1, {"model.safetensors": {"w": bytes(64)}}))
    before = Previous.read(run, 1, ReadBack())
    laid = lay_out(2, {"model.safetensors": {"w": bytes(63) + (b"x" if change == "bytes" else b"\0")}})
    (stored,) = laid.draft.files
    (leaf,) = stored.leaves
    if change == "name":
        leaf = replace(leaf, name="model/other")
    elif change == "dtype":
        leaf = replace(leaf, dtype="I8")
    elif change == "strides":
        leaf = replace(leaf, strides=(1,))
    laid = replace(laid, draft=replace(laid.draft, files=(replace(stored, leaves=(leaf,)),)))
    assert bring(run, laid, before).linked_files == ()
    assert run.manifest(2).files[0].leaves[0].name == leaf.name


def test_an_unreadable_checkpoint_is_passed_over_as_the_one_before(run: RunDirectory) -> None:
    for step in (1, 2, 3):
        bring(run, lay_out(step, {"a.bin": b"a", **({"b.bin": b"b"} if step == 1 else {})}))
    manifest = run.checkpoint_path(3) / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_bytes(b"{")
    found = [
        Previous.newest(run, step, linked, ReadBack()) for step, linked in ((9, []), (1, []), (0, []), (9, ["b.bin"]))
    ]
    assert [one and one.step for one in found] == [2, 1, None, 1]


@pytest.mark.parametrize("where", ["staging:file", "staging:manifest", "staging:synced", "commit:before-rename"])
def test_a_disk_that_fails_before_the_commit_leaves_nothing(run: RunDirectory, where: str) -> None:
    bring(run, lay_out(1, {"a.bin": b"1", "b.bin": b"2"}))

    def fail() -> None:
        raise OSError(28, os.strerror(28))

    points.plant(where, fail)
    try:
        with pytest.raises(StorageFailed, match="are free") as caught:
            bring(run, lay_out(2, {"a.bin": b"11", "b.bin": b"22"}))
    finally:
        points.clear()
    assert str(run.path) in str(caught.value)
    assert os.listdir(run.checkpoints_path) == ["step-00000001"]
    assert bring(run, lay_out(2, {"a.bin": b"11", "b.bin": b"22"})).step == 2
    assert CheckpointReader(run, 2).verify() == []


@pytest.mark.parametrize("again", [False, True])
def test_a_file_is_read_back_before_it_is_shared_and_damage_is_written_anew(run: RunDirectory, again: bool) -> None:
    """By the process that wrote it, too."""
    read_back = ReadBack()
    bring(run, lay_out(1, {"a.bin": b"a" * 9000}))
    file = run.checkpoint_path(1) / "a.bin"
    facts = file.stat()
    if again:
        assert read_back.is_whole(file.parent, run.manifest(1).files[0])
    file.chmod(0o644)
    file.write_bytes(b"b" * 9000)
    if again:  # rot leaves no trace in the times: what was read once counts until it is asked for again
        os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        assert read_back.is_whole(file.parent, run.manifest(1).files[0])
        assert not read_back.is_whole(file.parent, run.manifest(1).files[0], again=True)
    assert bring(run, lay_out(2, {"a.bin": b"a" * 9000}), Previous.read(run, 1, read_back)).linked_files == ()
    assert CheckpointReader(run, 2).verify() == []


def test_a_file_system_without_links_gets_copies(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "no links here")

    bring(run, lay_out(1, {"a.bin": b"a" * 9000}))
    monkeypatch.setattr(os, "link", refuse)
    assert bring(run, lay_out(2, {"a.bin": b"a" * 9000}), Previous.read(run, 1, ReadBack())).linked_files == ()
    assert CheckpointReader(run, 2).verify() == []
