"""Is the trainer alive? By pidfd for our own, by /proc for the one a lock names. Decides nothing."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

from stepfast.wire.run_socket import peer


class TrainerWatch:
    """Readable when the trainer has died.

    Not the end of the stream: loader workers forked from the trainer keep its sockets open after its death.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.pid, _ = peer(sock)
        try:
            self._fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            # It died before this process was up. An end of stream is as readable as a pidfd.
            self._fd, writer = os.pipe()
            os.close(writer)

    def fileno(self) -> int:
        return self._fd

    def wait_dead(self, timeout_s: float) -> bool:
        """True as soon as the trainer is dead; False when the time is up."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        os.close(self._fd)


def is_alive(pid: int) -> bool:
    """False for a zombie, too: its parent is only late to notice."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
