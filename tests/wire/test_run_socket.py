"""The socket of a run: modes, long paths, strangers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stepfast.wire import run_socket

CONNECT = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
"""


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_may_connect_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        with run_socket.listen(str(tmp_path)):
            assert (tmp_path / run_socket.SOCKET_NAME).stat().st_mode & 0o777 == 0o600
    finally:
        assert os.umask(old) == umask


def test_a_path_longer_than_an_address_works_and_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    run_socket.listen(str(deep)).close()
    with pytest.raises(ConnectionRefusedError):
        run_socket.connect(str(deep))
    with run_socket.listen(str(deep)) as listener, run_socket.connect(str(deep)) as ours:
        theirs, _ = listener.accept()
        with theirs:
            assert run_socket.peer(theirs) == (os.getpid(), os.geteuid())
            assert run_socket.is_allowed(theirs)
            ours.sendall(b"x")
            assert theirs.recv(1) == b"x"
    run_socket.unlink(str(deep))
    run_socket.unlink(str(deep))
    with pytest.raises(FileNotFoundError):
        run_socket.connect(str(deep))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_is_refused_even_where_the_file_lets_him_in(tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents[:-1]):
        if directory.stat().st_uid == 0 and directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o011)
    with run_socket.listen(str(tmp_path)) as listener:
        path = tmp_path / run_socket.SOCKET_NAME

        def connect() -> int:
            command = [sys.executable, "-I", "-c", CONNECT, str(path)]
            return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode

        assert connect() != 0, "mode 0600 does not hold"
        path.chmod(0o666)
        assert connect() == 0, "the test cannot reach the second wall"
        theirs, _ = listener.accept()
        with theirs:
            assert run_socket.peer(theirs)[1] == 65534
            assert not run_socket.is_allowed(theirs)


def test_a_socket_of_ours_is_not_inherited(tmp_path: Path) -> None:
    with run_socket.listen(str(tmp_path)) as listener, run_socket.connect(str(tmp_path)) as ours:
        assert isinstance(listener, socket.socket)
        assert not listener.get_inheritable()
        assert not ours.get_inheritable()
