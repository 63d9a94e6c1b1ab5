"""Write one complete slot as a checkpoint and commit it. What to keep, whom to tell: elsewhere."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from stepfast.core.errors import Damaged, StorageFailed, UsageError
from stepfast.core.words import BLOCK_BYTES, StoredFile
from stepfast.files.disk_errors import storage_failed
from stepfast.persist.digest import FileDigest
from stepfast.persist.previous import Previous, read_pieces
from stepfast.store.manifest import Manifest
from stepfast.store.names import is_tag
from stepfast.store.run_directory import RunDirectory
from stepfast.store.staging import Staging
from stepfast.wire.messages import Span

_WRITE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """Facts of one committed checkpoint."""

    step: int
    revision: int
    manifest_sha256: str
    bytes_written: int
    linked_files: tuple[str, ...]
    k1_s: float


def persist(
    run: RunDirectory,
    slot: memoryview,
    spans: Sequence[Span],
    draft: Manifest,
    linked: Sequence[str],
    *,
    previous: Previous | None,
    incarnation: str,
    received_s: float,
    fresh_copies: bool = False,
) -> Persisted:
    """Bring a slot to disk and commit it.

    Args:
        slot: the bytes; nobody writes them until this returns.
        previous: the checkpoint whose unchanged files are hard-linked.
        received_s: monotonic time at which the snapshot came, for k1.
        fresh_copies: link nothing. Links share fate, so now and then everything is written anew.

    Raises:
        StorageFailed: the disk refused. Nothing of this step remains.
        UsageError, Damaged: the draft fits neither the slot nor the previous checkpoint.
    """
    by_name = _check(slot, spans, draft, linked)
    before = previous
    if linked and before is None:
        raise UsageError(f"step {draft.step} takes {linked[0]} from a checkpoint before it; there is none")
    may_link = not fresh_copies and draft.name is None
    with _disk_errors(run, sum(stored.size for stored in draft.files)), ThreadPoolExecutor(1) as beside:
        staging = Staging.begin(run, draft.step, incarnation)
        committed = False
        try:
            brought = []
            for stored in draft.files:
                if (span := by_name.get(stored.name)) is not None:
                    data = slot[span.offset : span.offset + span.size]
                    brought.append(_from_slot(staging, stored, data, before if may_link else None, beside))
                else:
                    assert before is not None
                    brought.append(_from_previous(staging, stored, run, before, may_link))
            manifest = replace(
                draft,
                run_id=run.run_id,
                files=tuple(one.stored for one in brought),
                parent=before.as_parent(draft.step) if before is not None else None,
                k1_s=time.monotonic() - received_s,
            )
            sha256 = staging.commit(manifest)
            committed = True
        finally:
            if not committed:
                staging.abandon()
    return Persisted(
        step=draft.step,
        revision=draft.revision,
        manifest_sha256=sha256,
        bytes_written=sum(one.stored.size for one in brought if not one.is_linked),
        linked_files=tuple(one.stored.name for one in brought if one.is_linked),
        k1_s=time.monotonic() - received_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Brought:
    """A file that is in the staging directory."""

    stored: StoredFile
    is_linked: bool


def _from_slot(
    staging: Staging, stored: StoredFile, data: memoryview, before: Previous | None, beside: Executor
) -> _Brought:
    digest = FileDigest(data, stored.leaves)
    same = before.equal_file(stored, digest) if before is not None else None
    if same is not None and before is not None:
        return _Brought(stored=same, is_linked=staging.link(same, before.step))
    # The digest runs beside the writing: both only read the slot, and neither holds the interpreter lock.
    reading = beside.submit(digest.finish)
    staging.write(stored, _pieces(data))
    file_digest = reading.result()
    leaves = tuple(replace(leaf, digest=digest.leaf_digests[leaf.name]) for leaf in stored.leaves)
    return _Brought(stored=replace(stored, leaves=leaves, digest=file_digest), is_linked=False)


def _from_previous(
    staging: Staging, stored: StoredFile, run: RunDirectory, before: Previous, may_link: bool
) -> _Brought:
    ours = before.promised(stored)
    if may_link and before.is_whole(ours):
        return _Brought(stored=ours, is_linked=staging.link(ours, before.step))
    staging.write(ours, read_pieces(run.checkpoint_path(before.step), ours))
    return _Brought(stored=ours, is_linked=False)


def read_draft(raw: bytes) -> Manifest:
    """The manifest as the trainer sent it: strict, as if it had been read from disk."""
    try:
        return Manifest.from_json(raw)
    except Damaged as error:
        raise UsageError(f"the trainer's draft of a manifest was refused: {error.message}") from error


def check_tag(name: str) -> None:
    if not is_tag(name):
        raise UsageError(
            f"{name!a} cannot be the name of a checkpoint",
            hint="letters, digits, . _ - (not only digits, not `latest`)",
        )


def _check(slot: memoryview, spans: Sequence[Span], draft: Manifest, linked: Sequence[str]) -> dict[str, Span]:
    """A slot that contradicts its draft must never become a checkpoint."""
    where = f"the snapshot of step {draft.step}"
    if draft.name is not None:
        check_tag(draft.name)
    by_name = {span.name: span for span in spans}
    names = [stored.name for stored in draft.files]
    if len(by_name) != len(spans) or len(set(linked)) != len(linked):
        raise UsageError(f"{where} names a file twice")
    if sorted(names) != sorted([*by_name, *linked]):
        odd = set(names) ^ {*by_name, *linked} or set(by_name) & set(linked)
        raise UsageError(f"{where}: {', '.join(sorted(odd))} is not in exactly one of slot and previous checkpoint")
    end = 0
    for span in sorted(spans, key=lambda span: span.offset):
        if span.offset < end or span.offset % BLOCK_BYTES or span.size < 0:
            raise UsageError(f"{where}: {span.name} at {span.offset} overlaps or is not aligned")
        end = span.offset + span.size
    if end > len(slot):
        raise UsageError(f"{where} ends at {end}, its slot at {len(slot)}")
    for stored in draft.files:
        if stored.name in by_name and by_name[stored.name].size != stored.size:
            raise UsageError(f"{where}: {stored.name} has {by_name[stored.name].size} bytes, its draft {stored.size}")
        for leaf in stored.leaves:
            if not 0 <= leaf.offset <= leaf.offset + leaf.size <= stored.size:
                raise UsageError(f"{where}: leaf {leaf.name} leaves {stored.name}")
    return by_name


def _pieces(data: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(data), _WRITE_BYTES):
        yield data[at : at + _WRITE_BYTES]


@contextmanager
def _disk_errors(run: RunDirectory, needed: int) -> Iterator[None]:
    """Name the path, and how much was needed and is free: a full disk is the commonest failure of a save."""
    try:
        yield
    except OSError as error:
        raise _with_room(storage_failed(error, "save a checkpoint in", run.path), error, run, needed) from error
    except StorageFailed as failed:
        raise _with_room(failed, failed.__cause__, run, needed) from failed


def _with_room(failed: StorageFailed, cause: object, run: RunDirectory, needed: int) -> StorageFailed:
    if not isinstance(cause, OSError) or cause.errno not in (errno.ENOSPC, errno.EDQUOT):
        return failed
    return StorageFailed(f"{failed.message}; {_room(run, needed)}", hint=failed.hint)


def _room(run: RunDirectory, needed: int) -> str:
    try:
        room = os.statvfs(run.path)
    except OSError:
        return f"the checkpoint takes {needed:,} bytes"
    return f"the checkpoint takes {needed:,} bytes, {room.f_bavail * room.f_frsize:,} are free"
