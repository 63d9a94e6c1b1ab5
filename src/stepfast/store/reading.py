"""Reading a checkpoint: each file once, in long pieces, straight to where it is wanted, digested on the way.

Nothing read here counts before the digest of its file was found to fit. Not here: which checkpoint to read,
and what to do when it is damaged (`restore`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import xxhash

from stepfast.core.errors import Damaged
from stepfast.core.words import Leaf, StoredFile
from stepfast.files import strict, strict_json
from stepfast.store import names
from stepfast.store.run_directory import RunDirectory
from stepfast.store.safetensors import header_size, parse_header, stored_form
from stepfast.store.storable import LOOP_DEPTH, MAX_LOOP_BYTES, MAX_SEGMENT_BYTES

PIECE_BYTES = 2 << 20
_READERS = 2
_AHEAD = 6
_MAX_VIEWS = 512
_OTHER_DIGEST = "is not what its digest says"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that does not fit. `leaf` is None when it is the file as a whole."""

    file: str
    leaf: str | None
    what: str

    def __str__(self) -> str:
        return f"{self.file}{f', leaf {self.leaf}' if self.leaf else ''}: {self.what}"


@dataclass(frozen=True, slots=True)
class _Piece:
    offset: int
    views: list[memoryview]


class CheckpointReader:
    """One committed checkpoint; its manifest is read and checked at once."""

    def __init__(self, run: RunDirectory, step: int) -> None:
        self.path = run.checkpoint_path(step)
        self.manifest, self.manifest_sha256 = run.read_manifest(step)

    def loop(self) -> Any:
        """The content of loop.json.

        Raises:
            Damaged: it is missing or does not fit.
        """
        try:
            return strict_json.loads(
                self.read_file(names.LOOP, MAX_LOOP_BYTES), max_bytes=MAX_LOOP_BYTES, max_depth=LOOP_DEPTH
            )
        except ValueError as error:
            raise Damaged(f"{self.path / names.LOOP} is not strict JSON: {error}") from error

    def read_file(self, name: str, limit: int = MAX_SEGMENT_BYTES) -> bytes:
        """All of a file, digest compared."""
        stored = self.manifest.file(name)
        if stored is None:
            raise Damaged(f"{self.path} has no {name}")
        if stored.size > limit:
            raise Damaged(f"{self.path / name} has {stored.size} bytes, more than the {limit} allowed")
        os.close(self._open(stored))  # its size fits: only then is so much memory taken
        data = bytearray(stored.size)
        self._read(stored, lambda _: None, {0: memoryview(data)} if data else {})
        return bytes(data)

    def read_leaf_into(self, leaf: Leaf, buffer: memoryview) -> None:
        """One leaf only; its own digest is compared.

        Raises:
            Damaged: it does not fit; the buffer's content is worth nothing then.
        """
        stored = next((stored for stored in self.manifest.files if leaf in stored.leaves), None)
        assert stored is not None, f"leaf {leaf.name} is not in this checkpoint"
        view = _writable(buffer, leaf)
        fd = self._open(stored)
        try:
            self._refuse(self._header_problems(stored, fd))
            for start in range(0, leaf.size, PIECE_BYTES):
                strict.read_into(fd, [view[start : start + PIECE_BYTES]], leaf.offset + start, self._shown(stored))
        finally:
            os.close(fd)
        if xxhash.xxh3_128_hexdigest(view) != leaf.digest:
            self._refuse([Problem(file=stored.name, leaf=leaf.name, what=_OTHER_DIGEST)])

    def read_into(self, stored: StoredFile, buffers: Mapping[str, memoryview]) -> None:
        """Read a file once, the leaves whose keys are in `buffers` straight into these, all of it digested.

        Raises:
            Damaged: naming the file and, where it can be told, the leaf. The buffers are worth nothing then.
        """
        by_key = {leaf.key: leaf for leaf in stored.leaves}
        assert buffers.keys() <= by_key.keys(), f"{stored.name} has no leaf {buffers.keys() - by_key.keys()}"
        views = [(by_key[key], _writable(buffer, by_key[key])) for key, buffer in buffers.items()]
        # An empty leaf shares its offset with the next one.
        self._read(stored, lambda _: None, {leaf.offset: view for leaf, view in views if leaf.size})

    def stream_file(self, stored: StoredFile, sink: Callable[[memoryview], object]) -> None:
        """Hand over a file piece by piece; a piece is only valid during the call of `sink`.

        Only when this returns did the digest fit.
        """
        self._read(stored, sink, {})

    def verify(self, *, past_page_cache: bool = False) -> list[Problem]:
        """Read every byte of every file; what does not fit. Nothing: the checkpoint is intact."""
        problems: list[Problem] = []
        for stored in self.manifest.files:
            try:
                problems += self._stream(stored, lambda _: None, {}, past_page_cache=past_page_cache)
            except Damaged as error:
                problems.append(Problem(file=stored.name, leaf=None, what=error.message))
        return problems

    def extra_files(self) -> list[str]:
        """Names in the directory that the manifest does not know. They are never opened."""
        known = {stored.name for stored in self.manifest.files} | {names.MANIFEST}
        return sorted(set(os.listdir(self.path)) - known)

    def _read(
        self, stored: StoredFile, sink: Callable[[memoryview], object], targets: Mapping[int, memoryview]
    ) -> None:
        self._refuse(self._stream(stored, sink, targets))

    def _stream(
        self,
        stored: StoredFile,
        sink: Callable[[memoryview], object],
        targets: Mapping[int, memoryview],
        *,
        past_page_cache: bool = False,
    ) -> list[Problem]:
        """Read all of a file; what does not fit."""
        digest = xxhash.xxh3_128()
        fd = self._open(stored)
        try:
            if past_page_cache:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            if problems := self._header_problems(stored, fd):
                return problems
            with closing(self._read_ahead(stored, fd, targets)) as pieces:  # no reader outlives `fd`
                for piece in pieces:
                    for view in piece.views:
                        digest.update(view)
                        sink(view)
            return [] if digest.hexdigest() == stored.digest else self._blame(stored, fd)
        finally:
            os.close(fd)

    def _read_ahead(
        self, stored: StoredFile, fd: int, targets: Mapping[int, memoryview]
    ) -> Generator[_Piece, None, None]:
        """Pieces in order, while threads read the next ones: reading and digesting both let go of the GIL."""
        shown = self._shown(stored)
        plan = _plan(stored.size, targets)
        if stored.size <= PIECE_BYTES:
            for piece in plan:
                strict.read_into(fd, piece.views, piece.offset, shown)
                yield piece
            return
        waiting: list[tuple[_Piece, Future[None]]] = []
        with ThreadPoolExecutor(_READERS, thread_name_prefix="stepfast-read") as readers:

            def submit(pieces: Iterator[_Piece]) -> None:
                for piece in pieces:
                    waiting.append((piece, readers.submit(strict.read_into, fd, piece.views, piece.offset, shown)))

            try:
                submit(islice(plan, _AHEAD))
                while waiting:
                    piece, future = waiting.pop(0)
                    future.result()
                    yield piece
                    submit(islice(plan, 1))
            finally:
                for _, future in waiting:
                    future.cancel()

    def _open(self, stored: StoredFile) -> int:
        try:
            return strict.open_file(self.path, stored.name, stored.size)
        except FileNotFoundError:
            raise Damaged(f"{self._shown(stored)} is missing") from None

    def _header_problems(self, stored: StoredFile, fd: int) -> list[Problem]:
        """What the file says about its leaves must be what the manifest says."""
        if not stored.leaves and not stored.name.endswith(".safetensors"):
            return []
        shown = self._shown(stored)
        try:
            start = header_size(strict.read_some(fd, 8, 0, shown), stored.size)
            tensors = parse_header(strict.read_some(fd, start, 0, shown), stored.size)
        except Damaged as error:
            return [Problem(file=stored.name, leaf=None, what=error.message)]
        for leaf in stored.leaves:
            expected = (*stored_form(leaf.dtype, leaf.shape), leaf.offset, leaf.size)
            if tensors.pop(leaf.key, None) != expected:
                return [Problem(file=stored.name, leaf=leaf.name, what="the header says something else")]
        return [
            Problem(file=stored.name, leaf=None, what=f"holds {key}, which the manifest does not know")
            for key in tensors
        ][:1]

    def _blame(self, stored: StoredFile, fd: int) -> list[Problem]:
        """Which leaves it is. Read anew: a leaf nobody asked for may be the one."""
        problems = []
        for leaf in stored.leaves:
            digest = xxhash.xxh3_128()
            scratch = memoryview(bytearray(min(PIECE_BYTES, leaf.size)))
            for start in range(0, leaf.size, PIECE_BYTES):
                view = scratch[: min(PIECE_BYTES, leaf.size - start)]
                strict.read_into(fd, [view], leaf.offset + start, self._shown(stored))
                digest.update(view)
            if digest.hexdigest() != leaf.digest:
                problems.append(Problem(file=stored.name, leaf=leaf.name, what=_OTHER_DIGEST))
        return problems or [Problem(file=stored.name, leaf=None, what=_OTHER_DIGEST)]

    def _refuse(self, problems: list[Problem]) -> None:
        if problems:
            raise Damaged(f"{self.path}: {'; '.join(map(str, problems[:5]))}")

    def _shown(self, stored: StoredFile) -> str:
        return str(self.path / stored.name)


def _writable(buffer: memoryview, leaf: Leaf) -> memoryview:
    view = memoryview(buffer)
    if leaf.size == 0:  # an empty view cannot be cast
        assert view.nbytes == 0, f"the buffer for leaf {leaf.name} has another size"
        return memoryview(bytearray())
    view = view.cast("B")
    assert len(view) == leaf.size, f"the buffer for leaf {leaf.name} has another size"
    assert not view.readonly, f"the buffer for leaf {leaf.name} cannot be written"
    return view


def _plan(size: int, targets: Mapping[int, memoryview]) -> Iterator[_Piece]:
    """The whole file in pieces: views into the targets where they lie, scratch between them."""
    scratch = [memoryview(bytearray(min(PIECE_BYTES, size))) for _ in range(_AHEAD + 2)]
    starts = sorted(targets)
    offset = number = 0
    while offset < size:
        piece = _Piece(offset, [])
        room = scratch[number % len(scratch)]
        number += 1
        used = 0
        while used < PIECE_BYTES and offset < size and len(piece.views) < _MAX_VIEWS:
            if starts and offset >= starts[0]:
                target = targets[starts[0]]
                view = target[offset - starts[0] :][: PIECE_BYTES - used]
                if offset + len(view) == starts[0] + len(target):
                    starts.pop(0)
            else:
                until = min(size, starts[0] if starts else size)
                view = room[used : used + min(PIECE_BYTES - used, until - offset)]
            piece.views.append(view)
            offset += len(view)
            used += len(view)
        yield piece
