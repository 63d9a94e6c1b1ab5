"""One pass over a file's bytes for its digest and its leaves' digests. Can stop in the middle and go on."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from stepfast.core.words import Leaf

# Large enough that taking the interpreter lock back between two pieces costs nothing,
# small enough that the second digest finds the piece in the cache.
_PIECE_BYTES = 2 << 20


class FileDigest:
    """Walks from leaf to leaf. What was read once to compare is not read again to write."""

    def __init__(self, data: memoryview, leaves: Sequence[Leaf]) -> None:
        self._data = data
        self._leaves = sorted(leaves, key=lambda leaf: (leaf.offset, leaf.size))
        self._file = xxhash.xxh3_128()
        self._at = 0
        self._next = 0
        self.leaf_digests: dict[str, str] = {}

    def next_leaf(self) -> Leaf | None:
        """Digest up to the end of the next leaf; None when there is none left."""
        if self._next == len(self._leaves):
            return None
        leaf = self._leaves[self._next]
        self._next += 1
        self._to(leaf.offset)
        one = xxhash.xxh3_128()
        self._to(leaf.offset + leaf.size, one)
        self.leaf_digests[leaf.name] = one.hexdigest()
        return leaf

    def finish(self) -> str:
        """Digest the rest; gives the digest of the file."""
        while self.next_leaf() is not None:
            pass
        self._to(len(self._data))
        return self._file.hexdigest()

    def _to(self, end: int, leaf: xxhash.xxh3_128 | None = None) -> None:
        assert self._at <= end <= len(self._data), "leaves overlap or leave the file"
        while self._at < end:
            piece = self._data[self._at : min(end, self._at + _PIECE_BYTES)]
            self._file.update(piece)
            if leaf is not None:
                leaf.update(piece)
            self._at += len(piece)
