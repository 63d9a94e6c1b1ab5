"""One slot of shared memory: made and sealed by the agent, attached by the trainer. Not who fills it when."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading

from stepfast.core.errors import StorageFailed
from stepfast.core.words import round_up

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# Linux 5.14; Python has no names for them.
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
# The process cannot map other memory while one piece is filled in.
_PIECE_BYTES = 16 << 20


class Slot:
    """A mapping of one memfd. Both sides have one; the pages go when neither has."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self.fd = fd
        self.size = len(memory)
        self._memory = memory
        self._filling: threading.Thread | None = None

    @classmethod
    def allocate(cls, size: int) -> Slot:
        """Agent side: make the memory and fix its size.

        Pages are allocated here, not at the trainer's first touch: a sparse mapping ends in SIGBUS or in the
        trainer's memory group. The seals keep the trainer from truncating it under our reads.

        Raises:
            StorageFailed: there is no room.
        """
        size = round_up(max(size, 1))
        fd = os.memfd_create("stepfast-slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise no_room(size) from error
            raise
        return cls(fd, memory)

    @classmethod
    def attach(cls, fd: int, size: int, *, ahead: bool = False) -> Slot:
        """Trainer side: map a slot that came by descriptor. The slot owns `fd` from now on.

        `ahead`: it is not needed yet, so its page table is filled in by a thread; the first `view` waits for it.
        Forked loader workers do not get the mapping: one that outlives its trainer would keep the memory.

        Raises:
            StorageFailed: the memory is not what was announced, or cannot be mapped.
        """
        try:
            if os.fstat(fd).st_size != size or fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise StorageFailed(f"the slot that came is not sealed memory of {size:,} bytes")
            memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            os.close(fd)
            raise StorageFailed(f"the slot of {size:,} bytes cannot be mapped: {error.strerror}") from error
        except StorageFailed:
            os.close(fd)
            raise
        memory.madvise(mmap.MADV_DONTFORK)
        slot = cls(fd, memory)
        if ahead:
            slot._filling = threading.Thread(target=slot._populate_pieces, name="stepfast-slot", daemon=True)
            slot._filling.start()
        else:
            _populate(memory, _MADV_POPULATE_WRITE)
        return slot

    def populate(self) -> None:
        """Agent side, once the trainer has its descriptor: the first save then takes no page faults."""
        _populate(self._memory, _MADV_POPULATE_READ)

    @property
    def address(self) -> int:
        """Where a writable mapping begins, for copies that take addresses."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def view(self, offset: int = 0, size: int | None = None) -> memoryview:
        """Bytes of the slot; writable on the trainer's side, read-only on the agent's."""
        self._wait_filled()
        end = self.size if size is None else offset + size
        if not 0 <= offset <= end <= self.size:
            raise ValueError(f"bytes {offset} to {end} are outside a slot of {self.size}")
        return memoryview(self._memory)[offset:end]

    def close(self) -> None:
        """Unmap and close. Views must be gone; if one is not, the mapping stays until it is."""
        if self.fd < 0:
            return
        self._wait_filled()
        os.close(self.fd)
        self.fd = -1
        try:
            self._memory.close()
        except BufferError:
            # Somebody still looks at the bytes; the mapping goes with the last view.
            return

    def _wait_filled(self) -> None:
        if self._filling is not None:
            self._filling.join()
            self._filling = None

    def _populate_pieces(self) -> None:
        # Not mmap.madvise, which holds the interpreter lock; what fails here is paid by the first copy.
        madvise = ctypes.CDLL(None).madvise
        for offset in range(0, self.size, _PIECE_BYTES):
            size = min(_PIECE_BYTES, self.size - offset)
            madvise(ctypes.c_void_p(self.address + offset), ctypes.c_size_t(size), _MADV_POPULATE_WRITE)


def no_room(size: int, room: int | None = None) -> StorageFailed:
    there = f"; {room:,} bytes are free" if room is not None else ""
    return StorageFailed(
        f"no room for {size:,} bytes of shared memory{there}",
        hint="free host memory, raise the memory limit of the job, or train with a smaller state",
    )


def _populate(memory: mmap.mmap, advice: int) -> None:
    """Fill the page tables once: the first copy into fresh pages is 9 times slower than a warm one."""
    try:
        memory.madvise(advice)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOMEM):  # an older kernel: the first copy pays
            raise
