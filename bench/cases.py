"""What is measured, and the bar each ratio is held against. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of process. `twins`: run twice a round, and ours against ours is the null comparison; otherwise the
    process brings its own pairs."""

    name: str
    rounds: int
    twins: bool
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. Without a bar it is told, not judged."""

    case: str
    key: str
    title: str
    unit: str = "x"
    bar: float | None = None


CASES = (
    Case(name="big", rounds=3, twins=True, deadline_s=120),
    Case(name="loop", rounds=2, twins=False, deadline_s=240),
    Case(name="small", rounds=3, twins=True, deadline_s=60),
    Case(name="start", rounds=2, twins=True, deadline_s=60),
)

ROWS = (
    Row(case="big", key="copy", title="capture (k0), 1 GiB / one memcpy into warm shared memory", bar=1.3),
    Row(case="big", key="copy_plain", title="  the same / one memcpy into ordinary memory"),
    Row(case="big", key="boundary", title="  all the loop waits for in a save / one memcpy into shared memory"),
    Row(case="big", key="durable", title="durable, 1 GiB / torch.save + fsync", bar=1.0),
    Row(case="big", key="restore", title="verified restore, 1 GiB, warm / torch.load(mmap=False)", bar=1.2),
    Row(case="big", key="restore_put", title="  the same / torch.load + load_state_dict"),
    Row(case="big", key="restore_cold", title="  cold / torch.load(mmap=False) cold"),
    Row(case="loop", key="whole", title="1,000 steps of 20 ms, 300 MB, 10 saves / without Stepfast", bar=1.03),
    Row(case="loop", key="inside", title="  the same, first to last step (no opening, no last wait)", bar=1.03),
    Row(case="loop", key="thread", title="  processor time of the training thread, first to last step"),
    Row(
        case="small",
        key="capture_ms",
        title="capture of 1,200 leaves of 200 bytes (collect + copy)",
        unit="ms",
        bar=1.0,
    ),
    Row(case="small", key="copy_ms", title="  of it: the copy into the slot", unit="ms"),
    Row(case="small", key="boundary_ms", title="  all the loop waits for in a save", unit="ms"),
    Row(case="small", key="idle_ms", title="  a boundary without a save", unit="ms"),
    Row(case="small", key="adam_ms", title="  capture with AdamW: 1,200 such leaves and 400 step counters", unit="ms"),
    Row(case="start", key="import_ms", title="import stepfast, above bare Python", unit="ms", bar=150.0),
    Row(case="start", key="help_ms", title="stepfast --help", unit="ms", bar=200.0),
)
