"""Two run directories compared: what was skipped, computed again and new, and whether they ended the same. Reads only
what lies on the disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from stepfast.core.errors import Damaged
from stepfast.core.words import Leaf
from stepfast.report.lines import count, counted
from stepfast.store import metrics
from stepfast.store.manifest import Manifest
from stepfast.store.names import LOOP
from stepfast.store.progress import NO_DIGEST, ProgressRow, iter_progress
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How much of one kind was compared, and the names of what differs or is on one side only."""

    what: str
    num_all: int
    different: tuple[str, ...] = ()
    num_unread: int = 0
    """What could not be compared, because one side was not read."""

    @property
    def is_equal(self) -> bool:
        return self.num_all > 0 and not self.different and not self.num_unread

    def words(self) -> str:
        if not self.num_all:
            return f"{self.what}: nothing to compare"
        if self.different:
            shown = ", ".join(self.different[:_SHOWN]) + (", …" if len(self.different) > _SHOWN else "")
            return f"{self.what}: {count(len(self.different))} of {count(self.num_all)} differ: {shown}"
        if self.num_unread:
            return f"{self.what}: {count(self.num_unread)} of {count(self.num_all)} were not read, the others are equal"
        return f"{self.what}: all {count(self.num_all)} equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Numbers count batches; here a batch is a step."""

    total: int
    skipped: int
    again: int
    new: int
    seen_before: Compared
    """Steps computed again, with what was seen of them before the crash."""
    with_undisturbed: tuple[Compared, ...]
    later: tuple[int, ...]
    """Checkpoints that the second session made."""

    @property
    def is_exact(self) -> bool:
        return self.seen_before.is_equal and all(one.is_equal for one in self.with_undisturbed)

    @property
    def crash(self) -> int:
        return self.skipped + self.again

    def sums(self) -> str:
        return f"{count(self.skipped)} skipped, {count(self.again)} computed again, {count(self.new)} new"

    def sentence(self) -> str:
        if self.is_exact:
            return (
                "exact: every leaf, optimizer tensor, loss and batch is equal to those of the run that was never killed"
            )
        every = (self.seen_before, *self.with_undisturbed)
        if wrong := [one.what for one in every if one.different]:
            return f"not exact: these differ: {'; '.join(wrong)}"
        return f"cannot be said: not everything was compared: {'; '.join(o.what for o in every if not o.is_equal)}"


def judge(killed: RunDirectory, undisturbed: RunDirectory) -> Verdict:
    """Compare a run of two sessions with one that was never killed.

    Raises:
        Damaged: one of them has not ended, or cannot be read.
    """
    ours, others = _final(killed), _final(undisturbed)
    by_session: dict[int, dict[int, ProgressRow]] = {}
    for row in iter_progress(killed.progress_path):
        by_session.setdefault(row.session, {})[row.step] = row
    if len(by_session) != 2:
        raise Damaged(f"{killed.progress_path} holds {counted(len(by_session), 'session')}, not two")
    first, second = (by_session[number] for number in sorted(by_session))
    again = sorted(first.keys() & second.keys())
    total = ours.manifest.step
    seen = {**first, **second}
    straight = {row.step: row for row in iter_progress(undisturbed.progress_path)}
    return Verdict(
        total=total,
        skipped=min(second, default=0),
        again=len(again),
        new=len(second.keys() - first.keys()),
        seen_before=_progress("computed again, with what was seen before the crash", first, second, again),
        with_undisturbed=(
            _leaves("leaves of the model", "model.", ours.manifest, others.manifest),
            _leaves("optimizer tensors", "optimizer.", ours.manifest, others.manifest),
            _rest(ours, others),
            _history(ours, others),
            _progress("batches, in their order", seen, straight, range(total)),
        ),
        later=tuple(step for step in killed.steps() if step > min(second, default=0)),
    )


def _final(run: RunDirectory) -> CheckpointReader:
    reader = CheckpointReader(run, run.resolve("latest"))
    if reader.manifest.finished is None:
        raise Damaged(f"{run.path} has not reached its end: its newest checkpoint is step {reader.manifest.step}")
    if problems := reader.verify():
        raise Damaged(f"{run.path}: {'; '.join(map(str, problems))}")
    return reader


def _leaves(what: str, prefix: str, ours: Manifest, others: Manifest) -> Compared:
    """Leaves in their order: name, dtype, shape, strides, digest of the bytes."""

    def of(manifest: Manifest) -> dict[str, Leaf]:
        every = chain.from_iterable(stored.leaves for stored in manifest.files)
        return {leaf.name: leaf for leaf in every if leaf.name.startswith(prefix)}

    left, right = of(ours), of(others)
    different = list(_different(left, right))
    if not different and list(left) != list(right):
        different.append("their order")
    return Compared(what=what, num_all=len({**left, **right}), different=tuple(different))


def _rest(ours: CheckpointReader, others: CheckpointReader) -> Compared:
    """All that is no tensor: groups of the optimizer, schedule, random generators, cursor, flags."""
    left, right = _flat(ours.loop()), _flat(others.loop())
    different = tuple(_different(left, right))
    return Compared(
        what=f"numbers of {LOOP} (optimizer, schedule, random generators, cursor)",
        num_all=len({**left, **right}),
        different=different,
    )


def _history(ours: CheckpointReader, others: CheckpointReader) -> Compared:
    """Every logged value, bit by bit."""
    left, right = _rows(ours), _rows(others)
    return Compared(what="losses, bit by bit", num_all=len({**left, **right}), different=tuple(_different(left, right)))


def _rows(reader: CheckpointReader) -> dict[str, bytes]:
    names = reader.loop()["metric_names"]
    found: dict[str, bytes] = {}
    for stored in reader.manifest.files:
        if not stored.name.startswith("metrics-"):
            continue
        segment = int(stored.name[8:16])
        for row in metrics.decode(reader.read_file(stored.name), segment, len(names)):
            found[f"{names[int(row['name'])]} of step {int(row['step'])}"] = row.tobytes()
    return found


def _different(left: Mapping[str, object], right: Mapping[str, object]) -> Iterable[str]:
    return (name for name in {**left, **right} if name not in left or name not in right or left[name] != right[name])


def _flat(value: Any, path: str = "") -> dict[str, object]:
    """Every number and text of a JSON value under its path."""
    if isinstance(value, dict) and value:
        return dict(chain.from_iterable(_flat(item, f"{path}.{key}").items() for key, item in value.items()))
    if isinstance(value, list) and value:
        return dict(chain.from_iterable(_flat(item, f"{path}[{k}]").items() for k, item in enumerate(value)))
    # The type belongs to it: 1 and 1.0 and True are equal in Python.
    return {path.lstrip("."): (type(value).__name__, repr(value))}


def _progress(
    what: str, left: Mapping[int, ProgressRow], right: Mapping[int, ProgressRow], steps: Sequence[int]
) -> Compared:
    """Logged values and batches of these steps, by their digests."""
    different, num_unread = [], 0
    for step in steps:
        one, other = left.get(step), right.get(step)
        if one is None or other is None:
            different.append(f"step {step}")
            continue
        pairs = ((one.values_digest, other.values_digest), (one.batch_digest, other.batch_digest))
        if any(mine != others for mine, others in pairs if _is_read(mine) and _is_read(others)):
            different.append(f"step {step}")
        elif not all(_is_read(mine) and _is_read(others) for mine, others in pairs):
            num_unread += 1
    return Compared(what=what, num_all=len(steps), different=tuple(different), num_unread=num_unread)


def _is_read(digest: bytes | None) -> bool:
    return digest is not None and digest != NO_DIGEST
