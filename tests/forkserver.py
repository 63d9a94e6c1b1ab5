"""A process that has torch imported and forks children that run a script: 14 ms a start instead of 1.5 s.

Tests that kill use it, through the fixture `fork_server`:

    child = fork_server.start_script(path, ["--steps", "20"], env={}, cwd=tmp_path)
    child.kill()                       # SIGKILL, by pidfd: never hits another process
    assert child.wait(10) == -9

A child is a session leader of its own, has one torch thread, its own random seeds, stdout and stderr in
files, and runs the script as `__main__`; an exception, SystemExit and Ctrl-C end it as they end
`python script.py`. What differs from a cold start: modules that the server imported are there already, and
the hash seed is the server's. A test that is about one of these passes `cold=True`: a new interpreter.

The server adopts orphans of its children (agents whose trainer was killed) and reaps them, so that the
teardown of a test sees what was left behind. Linux only. Not for production code.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
ANSWER_TIMEOUT_S = 30.0
_PR_SET_CHILD_SUBREAPER = 36
# One thread in every library that makes a pool when it is loaded: a pool does not survive a fork.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def become_subreaper() -> None:
    """Orphans below this process become its children instead of those of process 1."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def wait_gone(pid: int, timeout_s: float) -> bool:
    """Wait until process `pid` has ended; a zombie has. False when it still lives after `timeout_s`."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return _wait_readable(fd, timeout_s)
    finally:
        os.close(fd)


def _wait_readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


class Child:
    """A started script. `pid` is its process, session and process group id."""

    def __init__(self, server: ForkServer, pid: int, pidfd: int, stdout_path: Path, stderr_path: Path) -> None:
        self._server = server
        self._pidfd = pidfd
        self._status: int | None = None
        self.pid = pid
        self.stdout_path = stdout_path
        self.stderr_path = stderr_path

    def __repr__(self) -> str:
        return f"Child(pid={self.pid}, status={self._status}, stderr={str(self.stderr_path)!r})"

    @property
    def stdout(self) -> str:
        """What it has written so far."""
        return self.stdout_path.read_text("utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text("utf-8", errors="replace")

    def is_alive(self) -> bool:
        return self._status is None and not _wait_readable(self._pidfd, 0)

    def wait(self, timeout_s: float) -> int:
        """The exit status, negative for a signal as in `subprocess`. TimeoutError when it still runs then."""
        if self._status is None:
            if not _wait_readable(self._pidfd, timeout_s):
                raise TimeoutError(f"{self!r} still runs after {timeout_s:g} s; its stderr:\n{self.stderr[-4000:]}")
            self._status = int(self._server._ask({"do": "status", "pid": self.pid})[0]["status"])
            os.close(self._pidfd)
        return self._status

    def wait_for_output(self, words: str, timeout_s: float = 30.0) -> str:
        """Wait for a whole line of stdout with `words`, and give it; an error when the child ends without."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = _wait_readable(self._pidfd, 0) if self._status is None else True
            for line in self.stdout.splitlines(keepends=True):
                if words in line and line.endswith("\n"):
                    return line
            if ended or time.monotonic() > deadline:
                raise TimeoutError(f"{self!r} never wrote {words!r}; its stderr:\n{self.stderr[-4000:]}")
            _wait_readable(self._pidfd, 0.005)  # its end cuts this short

    def kill(self, sig: int = signal.SIGKILL) -> None:
        """Send a signal. Nothing happens when the child has ended: its pid is never used again here."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sig)

    def kill_group(self, sig: int = signal.SIGKILL) -> None:
        """Send a signal to everything in the child's process group: loader workers, not an agent."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, sig)


class ForkServer:
    """The test's end. One request at a time; `close` ends the server and everything below it."""

    def __init__(self, imports: Sequence[str] = ("torch", "numpy", "torch.utils.data", "torch._dynamo")) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forkserver-")
        self._num_started = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno()), *imports],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD},
        )
        theirs.close()
        self._receive()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self,
        function: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> Child:
        """Run a function named "package.module:function", with `args` in sys.argv."""
        module, _, name = function.partition(":")
        assert name, f"{function!r} does not name a function; write package.module:function"
        return self._start({"module": module, "function": name, "args": list(args)}, env, cwd)

    def start_script(
        self,
        path: Path | str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        *,
        cold: bool = False,
    ) -> Child:
        """Run a file as `python path args` would; with `cold` a new interpreter does."""
        absolute = os.fspath(Path(path).absolute())
        return self._start({"script": absolute, "args": list(args), "cold": cold}, env, cwd)

    def start_module(
        self,
        module: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> Child:
        """`python -m module args`, always cold."""
        return self._start({"command": ["-m", module, *args], "cold": True, "args": []}, env, cwd)

    def _start(self, job: dict[str, Any], env: Mapping[str, str] | None, cwd: Path | str | None) -> Child:
        self._num_started += 1
        paths = [Path(self._folder.name) / f"{self._num_started:04d}.{end}" for end in ("out", "err")]
        job["env"] = {**os.environ, **_ONE_THREAD, **(env or {})}
        job["cwd"] = os.fspath(cwd or Path.cwd())
        job["stdout"], job["stderr"] = map(str, paths)
        for path in paths:
            path.touch()  # a test may read before the child has opened them
        answer, fds = self._ask({"do": "start", "job": job})
        return Child(self, answer["pid"], fds[0], paths[0], paths[1])

    def _ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        self._socket.send(json.dumps(request).encode())
        return self._receive()

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        if not _wait_readable(self._socket.fileno(), ANSWER_TIMEOUT_S):
            raise TimeoutError(f"the fork server did not answer in {ANSWER_TIMEOUT_S:g} s")
        data, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, 4)
        if not data:
            raise ConnectionError(f"the fork server ended with status {self._process.wait(5)}")
        answer: dict[str, Any] = json.loads(data)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer, list(fds)

    def close(self) -> None:
        self._socket.close()
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait(5)
            self._folder.cleanup()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


# --- the server's side --------------------------------------------------------------------------------


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Answer requests until the test's end is closed. Returns only in a forked child, with its job."""
    statuses: dict[int, int] = {}
    started: set[int] = set()
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    channel.send(b"{}")
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
        _reap(statuses, started)
        if channel.fileno() not in ready:
            continue
        data = channel.recv(1 << 20)
        if not data:
            _end_all()
        request = json.loads(data)
        if request["do"] == "status":
            # The test saw the end by pidfd, so the status is there or can be had without waiting.
            channel.send(json.dumps({"status": statuses.pop(request["pid"])}).encode())
            continue
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in (wake_read, wake_write):
                os.close(fd)
            channel.close()
            return dict(request["job"])
        started.add(pid)
        pidfd = os.pidfd_open(pid)
        socket.send_fds(channel, [json.dumps({"pid": pid}).encode()], [pidfd])
        os.close(pidfd)


def _reap(statuses: dict[int, int], started: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in started:
            started.discard(pid)
            statuses[pid] = os.waitstatus_to_exitcode(status)


def _end_all() -> NoReturn:
    """Kill what is left below this process, orphans that come to it meanwhile included."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for pid in children_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    os._exit(0)


def children_of(pid: int, *, recursive: bool = False) -> list[int]:
    """Living and zombie children of a process, from /proc: cheap enough for every teardown."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return found
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text("ascii").split())
    if recursive:
        for child in list(found):
            found += children_of(child, recursive=True)
    return found


def _prepare(job: dict[str, Any]) -> Callable[[], object]:
    """Make this forked child what a fresh process would be; what is returned then runs the job."""
    os.setsid()
    os.chdir(job["cwd"])
    for fd, name in ((0, os.devnull), (1, job["stdout"]), (2, job["stderr"])):
        opened = os.open(name, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, fd)
        os.close(opened)
        fcntl.fcntl(fd, fcntl.F_SETFD, 0)
    if job.get("cold"):
        command = job.get("command") or [job["script"], *job["args"]]
        os.execve(sys.executable, [sys.executable, *command], job["env"])
    os.environ.clear()
    os.environ.update(job["env"])
    for stream in (sys.stdout, sys.stderr):
        # What was printed before a SIGKILL should be in the file.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _seed_from_the_system()
    if "module" in job:
        return _function(job)
    return _script(job)


def _seed_from_the_system() -> None:
    import random

    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()


def _function(job: dict[str, Any]) -> Callable[[], object]:
    import importlib

    sys.path.insert(0, os.fspath(ROOT))
    module = importlib.import_module(job["module"])
    sys.argv = [module.__file__ or job["module"], *job["args"]]
    function: Callable[[], object] = getattr(module, job["function"])
    return function


def _script(job: dict[str, Any]) -> Callable[[], object]:
    path = job["script"]
    sys.argv = [path, *job["args"]]
    sys.path.insert(0, os.path.dirname(path))
    main = types.ModuleType("__main__")
    # runpy would clear these globals when the script ends, before threads and atexit functions that use them.
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __spec__=None, __cached__=None)
    sys.modules["__main__"] = main
    code = compile(Path(path).read_bytes(), path, "exec")
    return lambda: exec(code, main.__dict__)


def _start_server(channel_fd: int, imports: Sequence[str]) -> Callable[[], object]:
    import importlib

    become_subreaper()
    # Ctrl-C in the terminal is for pytest; the server goes when its socket closes. Children get Python's own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.append(str(ROOT))  # what the tests name as tests.…; last, so that it hides nothing
    for name in imports:
        importlib.import_module(name)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
        torch.set_num_interop_threads(1)
    gc.collect()
    gc.freeze()  # a child's collector would touch, and so copy, every page of torch's objects
    job = _serve(socket.socket(fileno=channel_fd))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return _prepare(job)


if __name__ == "__main__":
    # The job runs here, at the bottom of the stack, so that its end is the interpreter's ordinary end:
    # exit status, traceback, threads, atexit.
    _start_server(int(sys.argv[1]), sys.argv[2:])()
