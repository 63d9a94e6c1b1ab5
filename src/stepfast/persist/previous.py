"""The checkpoint before: which of its files a new one may share. Reads it, never writes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from stepfast.core.errors import Damaged, FormatTooNew
from stepfast.core.words import StoredFile
from stepfast.files.strict import open_file
from stepfast.persist.digest import FileDigest
from stepfast.store.manifest import Manifest, Parent
from stepfast.store.run_directory import RunDirectory

_READ_BYTES = 8 << 20


class ReadBack:
    """Files that this process has read back from disk and found whole: each once, however often it is linked."""

    def __init__(self) -> None:
        self._found: set[tuple[int, int, int, str]] = set()

    def is_whole(self, checkpoint: Path, stored: StoredFile, *, again: bool = False) -> bool:
        """Whether the bytes on disk are what the manifest says. `again`: what was found before does not count."""
        try:
            facts = os.lstat(checkpoint / stored.name)
            # An inode's number comes again after its file is gone; a link leaves the time of the content as it is.
            one = (facts.st_dev, facts.st_ino, facts.st_mtime_ns, stored.digest)
            if again:
                self._found.discard(one)
            if one not in self._found:
                for _ in read_pieces(checkpoint, stored):
                    pass
                self._found.add(one)
        except (Damaged, OSError):
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """One committed checkpoint, as its manifest describes it."""

    step: int
    manifest: Manifest
    manifest_sha256: str
    files: dict[str, StoredFile]
    path: Path
    read_back: ReadBack

    @classmethod
    def read(cls, run: RunDirectory, step: int, read_back: ReadBack) -> Previous:
        """
        Args:
            read_back: what is not in it is read before it is shared, since a link would pass damage on.
        """
        manifest, sha256 = run.read_manifest(step)
        return cls(
            path=run.checkpoint_path(step),
            step=step,
            manifest=manifest,
            manifest_sha256=sha256,
            files={stored.name: stored for stored in manifest.files},
            read_back=read_back,
        )

    @classmethod
    def newest(cls, run: RunDirectory, step: int, linked: Sequence[str], read_back: ReadBack) -> Previous | None:
        """The newest one not beyond `step` that can be read and has the files in `linked`."""
        for one in reversed(run.steps()):
            if one > step:
                continue
            try:
                found = cls.read(run, one, read_back)
            except (Damaged, FormatTooNew):
                continue
            if found.files.keys() >= set(linked):
                return found
        return None

    def as_parent(self, step: int) -> Parent | None:
        """The parent of a checkpoint of `step`. One that replaces us (later in the same step) has ours."""
        if self.step == step:
            return self.manifest.parent
        return Parent(step=self.step, manifest_sha256=self.manifest_sha256)

    def promised(self, stored: StoredFile) -> StoredFile:
        """The file of ours that a draft names without having its bytes."""
        ours = self.files.get(stored.name)
        if ours is None or ours.size != stored.size or stored.digest not in ("", ours.digest):
            has = f"{ours.size:,} bytes, digest {ours.digest}" if ours is not None else "no such file"
            raise Damaged(
                f"{stored.name} should be taken over from step {self.step}: {stored.size:,} bytes"
                f"{', digest ' + stored.digest if stored.digest else ''} are expected, there is {has}",
                hint="start the script again: it resumes from the newest checkpoint that is whole",
            )
        return ours

    def equal_file(self, stored: StoredFile, digest: FileDigest) -> StoredFile | None:
        """Our file of this name if it holds the same bytes; digests up to the first leaf that differs."""
        ours = self.files.get(stored.name)
        if ours is None or ours.size != stored.size or len(ours.leaves) != len(stored.leaves):
            return None
        theirs = {leaf.name: leaf for leaf in ours.leaves}
        for leaf in stored.leaves:
            one = theirs.get(leaf.name)
            if one is None or replace(one, digest="") != replace(leaf, digest=""):
                return None
        while (leaf_read := digest.next_leaf()) is not None:
            if digest.leaf_digests[leaf_read.name] != theirs[leaf_read.name].digest:
                return None
        if digest.finish() != ours.digest:
            return None
        return ours if self.is_whole(ours) else None

    def is_whole(self, stored: StoredFile) -> bool:
        """Whether the bytes on disk are what our manifest says."""
        return self.read_back.is_whole(self.path, stored)


def read_pieces(checkpoint: Path, stored: StoredFile) -> Iterator[memoryview]:
    """The bytes of a committed file, from the disk. A piece is valid until the next one is asked for.

    Raises:
        Damaged: after the last piece, when they are not what the manifest says.
    """
    digest = xxhash.xxh3_128()
    fd = open_file(checkpoint, stored.name, stored.size)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # the page cache may be better than the disk
        # Anonymous memory begins at a page, so the pieces can be written past the page cache.
        view = memoryview(mmap.mmap(-1, _READ_BYTES))
        at = 0
        while at < stored.size:
            got = os.preadv(fd, [view[: min(_READ_BYTES, stored.size - at)]], at)
            if got == 0:
                break
            digest.update(view[:got])
            at += got
            yield view[:got]
    finally:
        os.close(fd)
    if digest.hexdigest() != stored.digest:
        raise Damaged(
            f"{checkpoint / stored.name}: the bytes do not fit their digest",
            hint="run `stepfast verify` on the run; the next save of changed files is not affected",
        )
