"""The harness proves itself: a replay is the real tree, its states are legal, planted bugs are found."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.crash import toy_store
from tests.crash.effects import Effect, History, Promise, Start, Sync
from tests.crash.explore import (
    Barrier,
    Known,
    explore,
    leave_out_each,
    prove_replay,
    run_writer,
    show_barriers,
    writer_command,
)
from tests.crash.states import READINGS, Point, Reading, choices, points, tree_after
from tests.crash.trace import CannotFollow
from tests.crash.writers.toy import BUGS

WRITERS = Path(__file__).parent / "writers"
pytestmark = pytest.mark.slow


def traced(writer: str, tmp_path: Path, *arguments: str) -> History:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    return run_writer(writer_command(WRITERS / writer, str(root), *arguments), root, tmp_path / "log")


def traced_line(line: str, tmp_path: Path) -> History:
    (tmp_path / "writer.py").write_text(f"import mmap, os, sys\nroot = sys.argv[1]\n{line}\n")
    root = tmp_path / "root"
    root.mkdir()
    command = [sys.executable, "-S", str(tmp_path / "writer.py"), str(root)]
    return run_writer(command, root, tmp_path / "log")


def test_a_replay_gives_exactly_the_real_tree(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "kept").mkdir(parents=True)
    (root / "old").write_bytes(b"old")
    (root / "kept" / "twin").hardlink_to(root / "old")
    history = traced("everything.py", tmp_path)  # run_writer compares
    assert len(history.effects) > 90
    (root / "kept" / "twin").write_bytes(b"olD and new")
    with pytest.raises(AssertionError, match="kept/twin"):
        prove_replay(history, root)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("f = open(root + '/x', 'w+b'); f.truncate(9); mmap.mmap(f.fileno(), 9)", "shared mapping"),
        ("os.mkfifo(root + '/x')", "mknod"),
        ("os.open(root, os.O_TMPFILE | os.O_WRONLY)", "O_TMPFILE"),
        ("open(root + '/../x', 'w'); os.rename(root + '/../x', root + '/x')", "border"),
        ("open(root + '/../x', 'w'); os.link(root + '/../x', root + '/x')", "from outside"),
        ("open(root + '/x', 'w'); os.symlink('x', root + '/y'); open(root + '/y', 'w')", "symbolic link"),
    ],
)
def test_what_cannot_be_followed_is_refused(line: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CannotFollow, match=reason):
        traced_line(line, tmp_path)


def test_a_writer_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        traced_line("open(root + '/x', 'w'); sys.exit('no such thing')", tmp_path)


def all_trees(reading: Reading, *events: Effect | Sync | Promise, folders: tuple[int, ...] = (0,)) -> set[str]:
    """What may be found after the last event, in words: `name=content` of each file."""
    effects = [event for event in events if isinstance(event, Effect)]
    placed, before = [], 0
    for event in events:
        if isinstance(event, Effect):
            before += 1
        else:
            placed.append((before, event))
    history = History(start=Start(), effects=tuple(effects), events=tuple(placed), folders=frozenset(folders), links={})
    *_, last = points(history, reading)
    return {shown(history, last, choice) for choice in every_choice(history, last, reading)}


def every_choice(history: History, point: Point, reading: Reading) -> list[dict[int, str]]:
    return list(choices(history, point, reading, limit=1 << 12, extra=0, rng=random.Random(0)))  # type: ignore[arg-type]


def shown(history: History, point: Point, choice: dict[int, str]) -> str:
    tree = tree_after(history, point, choice)  # type: ignore[arg-type]
    return " ".join(f"{path}={node.content.decode()}" for path, node in tree.items() if node.kind == "file")


CREATE_A = Effect(label="create a", names=((0, "a", 1),))
WRITE_A = Effect(label="write a", node=1, data=b"AAAA")
RENAME_A = Effect(label="rename a b", names=((0, "a", None), (0, "b", 1)))
CREATE_C = Effect(label="create c", names=((0, "c", 2),))


def fsync(node: int, covers: int) -> Sync:
    return Sync(label="fsync", node=node, covers=covers)


@pytest.mark.parametrize("reading", READINGS)
def test_an_unsynced_write_may_be_anything(reading: Reading) -> None:
    trees = all_trees(reading, CREATE_A, WRITE_A)
    assert trees == {"", "a=", "a=AA", "a=AAAA", "a=\0\0AA", "a=\0\0\0\0"}


def test_a_synced_file_needs_its_name_synced_too() -> None:
    assert all_trees("posix", CREATE_A, WRITE_A, fsync(1, 2)) == {"", "a=AAAA"}
    assert all_trees("ordered", CREATE_A, WRITE_A, fsync(1, 2)) == {"a=AAAA"}
    assert all_trees("posix", CREATE_A, WRITE_A, fsync(1, 2), fsync(0, 2)) == {"a=AAAA"}


def test_a_rename_is_one_effect() -> None:
    synced = (CREATE_A, WRITE_A, fsync(1, 2), fsync(0, 2))
    for reading in READINGS:
        assert all_trees(reading, *synced, RENAME_A) == {"a=AAAA", "b=AAAA"}
        assert all_trees(reading, *synced, RENAME_A, fsync(0, 3)) == {"b=AAAA"}


def test_a_journal_keeps_the_order_of_names() -> None:
    assert all_trees("ordered", CREATE_A, CREATE_C) == {"", "a=", "a= c="}
    assert all_trees("posix", CREATE_A, CREATE_C) == {"", "a=", "c=", "a= c="}
    # an fsync takes with it what is older than the file's own newest change, and no more
    assert all_trees("ordered", CREATE_A, CREATE_C, fsync(1, 2)) == {"a=", "a= c="}
    assert all_trees("ordered", CREATE_A, CREATE_C, fsync(2, 2)) == {"a= c="}


def test_a_sync_covers_only_what_was_done_when_it_began() -> None:
    assert "a=" in all_trees("posix", CREATE_A, fsync(0, 1), WRITE_A, fsync(1, 1))
    assert all_trees("posix", CREATE_A, fsync(0, 1), WRITE_A, fsync(1, 2)) == {"a=AAAA"}


def test_a_directory_never_has_two_names() -> None:
    made = Effect(label="mkdir a", names=((0, "a", 5),))
    within = Effect(label="create a/x", names=((5, "x", 1),))
    first = Effect(label="rename a b", names=((0, "a", None), (0, "b", 5)))
    second = Effect(label="rename b c", names=((0, "b", None), (0, "c", 5)))
    events = (made, within, fsync(0, 2), fsync(5, 2), first, second)
    assert all_trees("posix", *events, folders=(0, 5)) == {"a/x=", "b/x=", "c/x="}


def test_the_right_writer_passes_and_needs_each_fsync(tmp_path: Path) -> None:
    history = traced("toy.py", tmp_path)
    known: Known = set()
    report = explore(history, toy_store.check, known=known)
    print(report)
    assert not report.findings, report.findings[0]
    assert len(report.trees) >= 100
    barriers: list[Barrier] = leave_out_each(history, toy_store.check, known)
    print(show_barriers(barriers))
    assert len(barriers) == 20
    assert [barrier.label for barrier in barriers if barrier.finding is None] == []


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path) -> None:
    report = explore(traced("toy.py", tmp_path, bug), toy_store.check, stop_after=1)
    assert report.findings, f"{bug} was not found in {report.checked} states"
    print(report.findings[0])
