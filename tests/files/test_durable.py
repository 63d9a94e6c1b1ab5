"""Durable writing: what lies there afterwards, and what does not after a failure."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepfast.files import durable


@pytest.fixture
def limited_files() -> Iterator[int]:
    """No file may grow past 64 KiB: a short write first, then EFBIG, like a disk that fills up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    yield 64 << 10
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 3) | st.integers(4090, 4100) | st.sampled_from([4096, 8192, 65536]), max_size=6))
def test_write_direct_writes_the_pieces(tmp_path: Path, lengths: list[int]) -> None:
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    slot = mmap.mmap(-1, max(1, sum(lengths)))
    slot[:] = os.urandom(len(slot))
    expected = bytes(slot[: sum(lengths)])
    whole = memoryview(slot)
    cuts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    pieces = [whole[start:end] for start, end in itertools.pairwise(cuts)]
    durable.write_direct(path, pieces, len(expected))
    assert path.read_bytes() == expected
    assert path.stat().st_mode & 0o777 == 0o444
    for view in (*pieces, whole):
        view.release()
    slot.close()


def test_write_direct_cuts_long_pieces_and_takes_badly_aligned_ones(tmp_path: Path) -> None:
    size = durable.PIECE_BYTES * 2 + 4096 + 17
    data = bytearray(os.urandom(size + 1))
    durable.write_direct(tmp_path / "file", [memoryview(data)[1:]], size)
    assert (tmp_path / "file").read_bytes() == data[1:]


@pytest.mark.parametrize("size", [9, 11])
def test_write_direct_refuses_another_length_and_leaves_nothing(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match="announced"):
        durable.write_direct(tmp_path / "file", [memoryview(bytes(10))], size)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_no_file(tmp_path: Path, limited_files: int) -> None:
    data = memoryview(bytes(limited_files + 1))
    for write in (
        lambda: durable.write_direct(tmp_path / "a", [data], len(data)),
        lambda: durable.write_file(tmp_path / "b", data),
    ):
        with pytest.raises(OSError) as caught:
            write()
        assert caught.value.errno == errno.EFBIG
    (tmp_path / "c").write_bytes(b"old")
    with pytest.raises(OSError):
        durable.replace_file(tmp_path / "c", bytes(data))
    assert os.listdir(tmp_path) == ["c"]
    assert (tmp_path / "c").read_bytes() == b"old"


def test_nothing_is_written_over(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    (tmp_path / "link").symlink_to(outside)
    for name in ("outside", "link"):
        with pytest.raises(FileExistsError):
            durable.write_file(tmp_path / name, b"x")
        with pytest.raises(FileExistsError):
            durable.write_direct(tmp_path / name, [memoryview(b"x")], 1)
    assert outside.read_bytes() == b"mine"


def test_replace_file_takes_away_what_a_dead_writer_left_and_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    (tmp_path / ".ref.new").symlink_to(outside)
    durable.replace_file(tmp_path / "ref", b"one")
    durable.replace_file(tmp_path / "ref", b"two")
    assert (tmp_path / "ref").read_bytes() == b"two"
    assert outside.read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["outside", "ref"]


def test_make_dirs_is_owner_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        durable.make_dirs(tmp_path / "a" / "b")
        os.umask(0o777)
        durable.make_dirs(tmp_path / "c" / "d")
    finally:
        os.umask(before)
    for name in ("a", "a/b", "c", "c/d"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises(NotADirectoryError):
            durable.make_dirs(path)


def test_rename_noreplace_and_exchange(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    (tmp_path / "empty").mkdir()
    for name in ("two", "empty"):  # a plain rename replaces the empty one
        with pytest.raises(FileExistsError):
            durable.rename_noreplace(tmp_path / "one", tmp_path / name)
    with pytest.raises(FileNotFoundError):
        durable.rename_noreplace(tmp_path / "none", tmp_path / "new")
    assert durable.exchange(tmp_path / "one", tmp_path / "two")
    assert os.listdir(tmp_path / "one") == ["two"]
    durable.rename_noreplace(tmp_path / "one", tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == ["empty", "new", "two"]


def test_link_or_copy(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"data")
    assert durable.link_or_copy(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "one").stat().st_ino == (tmp_path / "two").stat().st_ino
    with pytest.raises(FileExistsError):
        durable.link_or_copy(tmp_path / "one", tmp_path / "two")


@pytest.mark.skipif(
    not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat("/tmp").st_dev,
    reason="needs a second file system",
)
def test_link_or_copy_copies_to_another_file_system(tmp_path: Path) -> None:
    if tmp_path.stat().st_dev == os.stat("/dev/shm").st_dev:
        pytest.skip("the temporary directory is on that file system")
    (tmp_path / "one").write_bytes(b"data")
    target = Path(f"/dev/shm/stepfast-test-{os.getpid()}-{tmp_path.name}")
    try:
        assert not durable.link_or_copy(tmp_path / "one", target)
        assert target.read_bytes() == b"data"
        assert target.stat().st_mode & 0o777 == 0o444
    finally:
        target.unlink()


def test_append_line_closes_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    durable.append_line(path, b"one\n", sync=True)
    with path.open("ab") as file:
        file.write(b"tor")
    durable.append_line(path, b"two\n")
    assert path.read_bytes() == b"one\ntor\ntwo\n"
    with pytest.raises(ValueError):
        durable.append_line(path, b"a\nb\n")
