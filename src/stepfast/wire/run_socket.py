"""RUN/agent.sock: where commands reach the agent of a run. Only the same user, and root, may connect."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

SOCKET_NAME = "agent.sock"
_CREDENTIALS = struct.Struct("3i")


def listen(run_path: str) -> socket.socket:
    """Bind the socket of a run whose lock the caller holds. A dead agent's socket file is replaced."""
    with _directory(run_path) as at:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(at)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        old = os.umask(0o177)
        try:
            sock.bind(at)
        except BaseException:
            sock.close()
            raise
        finally:
            os.umask(old)
    sock.listen(16)
    sock.setblocking(False)
    return sock


def unlink(run_path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _directory(run_path) as at:
        os.unlink(at)


def connect(run_path: str, timeout_s: float = 3.0) -> socket.socket:
    """Connect to the agent of a run.

    Raises:
        FileNotFoundError, ConnectionRefusedError: no agent lives there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(timeout_s)
        with _directory(run_path) as at:
            sock.connect(at)
    except BaseException:
        sock.close()
        raise
    return sock


def peer(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other side, as the kernel saw it when the connection was made."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def is_allowed(sock: socket.socket) -> bool:
    return peer(sock)[1] in (0, os.geteuid())


@contextlib.contextmanager
def _directory(run_path: str) -> Iterator[str]:
    # A socket address holds 107 bytes; through the descriptor the path may be as long as any other.
    fd = os.open(run_path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)
