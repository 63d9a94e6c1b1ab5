"""What is appended: progress, the ledger; and the segments of metrics."""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepfast.core.errors import Damaged, StorageFailed, UsageError
from stepfast.store import ledger, metrics
from stepfast.store.progress import ProgressRow, ProgressWriter, iter_progress, read_progress

ROW_BYTES = 72
ROWS = st.builds(
    ProgressRow,
    step=st.integers(0, 20),
    epoch=st.integers(0, 2**32 - 1),
    batch=st.integers(0, 2**64 - 1),
    flags=st.sampled_from([0, 4, 12]),
    values_digest=st.binary(min_size=16, max_size=16),
    loss=st.none() | st.floats(allow_nan=False),
    batch_digest=st.none() | st.binary(min_size=16, max_size=16),
)


def write(path: Path, rows: list[ProgressRow]) -> int:
    writer = ProgressWriter(path)
    for row in rows:
        writer.append(row)
    writer.close()
    return writer.session


def comparable(row: ProgressRow) -> tuple[Any, ...]:
    return (row.step, row.epoch, row.batch, row.flags & ~3, row.values_digest, row.loss, row.batch_digest)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(sessions=st.lists(st.lists(ROWS, max_size=5), max_size=3), torn=st.integers(0, ROW_BYTES - 1))
def test_progress(tmp_path: Path, sessions: list[list[ProgressRow]], torn: int) -> None:
    path = tmp_path / "progress.bin"
    path.unlink(missing_ok=True)
    for rows in sessions:
        write(path, rows)
        with path.open("ab") as file:  # the writer is killed inside its next write
            file.write(b"\xff" * torn)
    written = [row for rows in sessions for row in rows]
    found = list(iter_progress(path))
    assert [comparable(row) for row in found] == [comparable(row) for row in written]
    newest = read_progress(path)
    assert newest.keys() == {row.step for row in written}
    for row in written:
        newest_written = [other for other in written if other.step == row.step][-1]
        assert comparable(newest[row.step]) == comparable(newest_written)
    assert read_progress(path, first_step=7) == {step: row for step, row in newest.items() if step >= 7}
    numbers = [row.session for row in found]
    assert numbers == sorted(numbers)


def test_sessions_are_counted_and_bits_that_are_no_numbers_kept(tmp_path: Path) -> None:
    path = tmp_path / "progress.bin"
    assert read_progress(path) == {}
    quiet = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]
    assert write(path, [ProgressRow(step=1, epoch=0, batch=1, loss=quiet)]) == 1
    assert write(path, []) == 2
    assert write(path, [ProgressRow(step=1, epoch=0, batch=1)]) == 2  # the second wrote nothing
    row = next(iter_progress(path))
    assert row.loss is not None
    assert math.isnan(row.loss)
    assert struct.pack("<d", row.loss) == struct.pack("<d", quiet)
    assert read_progress(path)[1].loss is None
    assert read_progress(path)[1].session == 2
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_rotten_row_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "progress.bin"
    write(path, [ProgressRow(step=step, epoch=0, batch=step, loss=1.0) for step in range(3)])
    data = bytearray(path.read_bytes())
    data[2 * ROW_BYTES + 44] ^= 1
    path.write_bytes(data)
    assert sorted(read_progress(path)) == [0, 2]
    data[3 * ROW_BYTES + 1] ^= 1
    path.write_bytes(data)
    assert write(path, []) == 2


@pytest.mark.parametrize("content", [b"x" * 72, b"stepfast-progress 2".ljust(71) + b"\n" + b"x" * 72])
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "progress.bin"
    path.write_bytes(content)
    with pytest.raises(Damaged):
        ProgressWriter(path)
    with pytest.raises(Damaged):
        read_progress(path)
    assert path.read_bytes() == content
    path.unlink()
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(StorageFailed):
        ProgressWriter(path)
    with pytest.raises(Damaged, match="link"):
        read_progress(path)
    assert not (tmp_path / "victim").exists()


def test_ledger_round_trip_for_anybody_with_json(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert ledger.read(path) == ([], 0)
    events = [{"event": "commit", "step": 1}, {"event": "note", "text": 'ä\n"},{"crc32":"', "x": [1.5, None]}]
    for event in events:
        ledger.append(path, event)
    assert ledger.read(path) == (events, 0)
    for line, event in zip(path.read_bytes().splitlines(), events, strict=True):
        value = json.loads(line)
        crc = value.pop("crc32")
        assert value == event
        assert crc == f"{zlib.crc32(line[: line.rindex(b',')]):08x}"


@pytest.mark.parametrize("cut", [1, 5, 20, 40])
def test_a_torn_line_is_closed_and_counted_once(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ledger.jsonl"
    for step in range(3):
        ledger.append(path, {"event": "commit", "step": step})
    os.truncate(path, path.stat().st_size - cut)
    whole = [0, 1, 2] if cut == 1 else [0, 1]
    for _ in range(2):
        events, damaged = ledger.read(path)
        assert ([event["step"] for event in events], damaged) == (whole, 3 - len(whole))
    ledger.append(path, {"step": 9})
    events, damaged = ledger.read(path)
    assert ([event["step"] for event in events], damaged) == ([*whole, 9], 3 - len(whole))


def test_every_flipped_bit_of_a_line_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger.append(path, {"event": "commit", "step": 1})
    data = path.read_bytes()
    for offset in range(len(data) - 1):
        changed = bytearray(data)
        changed[offset] ^= 1
        path.write_bytes(changed)
        assert ledger.read(path)[0] == []
        assert ledger.read(path)[1] >= 1


def test_what_cannot_stand_in_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for event in ({}, {"crc32": ""}, {"x": float("nan")}, {"x": "a" * (1 << 20)}, {"x": {1: 2}}):
        with pytest.raises(UsageError):
            ledger.append(path, event)
    assert not path.exists()
    path.write_bytes(b"x" * (3 << 20) + b"\n")
    assert ledger.read(path)[0] == []


@given(
    st.lists(
        st.tuples(st.integers(0, 9000), st.integers(0, 2**32 - 1), st.integers(0, 3), st.floats()), max_size=20
    ).map(sorted)
)
def test_metrics_round_trip(rows: list[tuple[int, int, int, float]]) -> None:
    data = metrics.encode(rows)
    assert len(data) == 24 * len(rows)
    table = np.frombuffer(data, metrics.ROW)
    back = b""
    for segment, part in metrics.split(table):
        encoded = metrics.encode(part)
        decoded = metrics.decode(encoded, segment, num_names=4)
        assert {metrics.segment_of(int(step)) for step in decoded["step"]} == {segment}
        back += decoded.tobytes()
    assert back == data


def test_metrics_that_are_none() -> None:
    row = metrics.encode([(5000, 0, 0, 1.0)])
    assert metrics.segment_name(metrics.segment_of(5000)) == "metrics-00000001.bin"
    for data, segment, names in ((row[:-1], 1, 1), (row, 0, 1), (row, 1, 0)):
        with pytest.raises(Damaged):
            metrics.decode(data, segment, names)
    with pytest.raises(Damaged, match="fall"):
        metrics.decode(metrics.encode([(2, 0, 0, 1.0), (1, 0, 0, 1.0)]), 0, 1)
