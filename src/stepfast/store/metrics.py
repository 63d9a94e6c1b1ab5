"""Rows of metrics in segments of 4,096 steps. A segment whose steps are over never changes again.

Not here: the names of the metrics (`metric_names` in loop.json) and which rows to keep after a resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from stepfast.core.errors import Damaged

SEGMENT_STEPS = 4096
ROW = np.dtype([("step", "<u8"), ("epoch", "<u4"), ("name", "<u4"), ("value", "<f8")])


def segment_of(step: int) -> int:
    """The segment that holds the rows of a step."""
    return step // SEGMENT_STEPS


def segment_name(segment: int) -> str:
    return f"metrics-{segment:08d}.bin"


def encode(rows: Iterable[tuple[int, int, int, float]] | npt.NDArray[np.void]) -> bytes:
    """Rows of (step, epoch, number of the name, value), steps not falling."""
    table = rows.astype(ROW) if isinstance(rows, np.ndarray) else np.array(list(rows), dtype=ROW)
    return table.tobytes()


def decode(data: bytes, segment: int, num_names: int) -> npt.NDArray[np.void]:
    """The rows of a segment; a read-only view of `data`.

    Raises:
        Damaged: it is no such segment.
    """
    shown = segment_name(segment)
    if len(data) % ROW.itemsize:
        raise Damaged(f"{shown} has {len(data)} bytes, no multiple of {ROW.itemsize}")
    rows = np.frombuffer(data, dtype=ROW)
    steps = rows["step"]
    if len(rows) and (segment_of(int(steps[0])) != segment or segment_of(int(steps[-1])) != segment):
        raise Damaged(f"{shown} holds steps of another segment")
    if (steps[1:] < steps[:-1]).any():
        raise Damaged(f"{shown} holds steps that fall")
    if (rows["name"] >= num_names).any():
        raise Damaged(f"{shown} holds a metric without a name")
    return rows


def split(rows: npt.NDArray[np.void]) -> Sequence[tuple[int, npt.NDArray[np.void]]]:
    """Rows whose steps do not fall, by segment."""
    segments = rows["step"] // SEGMENT_STEPS
    return [(int(segment), rows[segments == segment]) for segment in np.unique(segments)]
