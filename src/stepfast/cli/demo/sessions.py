"""The processes of the demo: started, listened to, killed. Not what is shown of them."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepfast.cli.asking import standing_of
from stepfast.core.errors import AgentLost, StepfastError
from stepfast.files.locks import RunLock

NEVER = -1
_CHILD = (sys.executable, "-P", "-m", "stepfast.cli.demo.child")
DEADLINE_S = 600.0
_LOOK_S = 0.05
_KILL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The loop of a session asks for a batch; the one before it is finished."""

    session: Session
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    session: Session
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    session: Session
    status: int


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One start of the script."""

    name: str
    run_path: Path
    wait_at: int
    process: subprocess.Popen[bytes]
    said: list[str] = field(default_factory=list)
    batch: int | None = None
    was_killed: bool = False


class Sessions:
    """Sessions of one script, and what comes from them. Nothing outlives `close`."""

    def __init__(self, script: Path, environment: Mapping[str, str]) -> None:
        self._script = script
        self._environment = dict(environment)
        self._selector = selectors.DefaultSelector()
        self._pending: dict[int, bytes] = {}
        self._living: list[Session] = []

    def start(self, name: str, run_path: Path, *, wait_at: int = NEVER) -> Session:
        """Start the script on a run; at batch `wait_at` it waits to be killed."""
        ours, theirs = os.pipe()
        try:
            process = subprocess.Popen(
                [*_CHILD, str(theirs), str(wait_at), str(self._script), str(run_path)],
                pass_fds=[theirs],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the demo, which ends them
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        session = Session(name=name, run_path=run_path, wait_at=wait_at, process=process)
        self._living.append(session)
        assert process.stderr is not None
        self._listen(ours, session, "batch")
        self._listen(process.stderr.fileno(), session, "line")
        return session

    def events(self) -> Iterator[Asked | Said | Ended]:
        """What happens, until every session has ended. Sessions may be started and killed meanwhile."""
        deadline = time.monotonic() + DEADLINE_S
        while self._living:
            ready = self._selector.select(min(1.0, max(0.0, deadline - time.monotonic())))
            if time.monotonic() >= deadline:
                raise StepfastError(f"the demo did not end within {DEADLINE_S:g} s", hint="is the machine overloaded?")
            for key, _ in ready:
                session, what = key.data
                yield from self._read(key.fd, session, what)
            for session in [s for s in self._living if not self._is_heard(s)]:
                # Both pipes are closed, so the process ends, or has ended.
                status = session.process.wait(_KILL_S)
                self._forget(session)
                yield Ended(session=session, status=status)

    def kill(self, session: Session) -> tuple[int, int]:
        """SIGKILL to the trainer and its agent, so that only the disk is left. Returns the two process ids."""
        self._wait_settled(session)
        agent_pid = self._agent_of(session)
        agent = os.pidfd_open(agent_pid)
        trainer = os.pidfd_open(session.process.pid)
        try:
            if self._agent_of(session) != agent_pid:
                raise AgentLost(f"the agent of {session.name} was replaced just now", hint="start the demo again")
            signal.pidfd_send_signal(agent, signal.SIGKILL)
            signal.pidfd_send_signal(trainer, signal.SIGKILL)
            session.was_killed = True
            for fd in (agent, trainer):
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                if not poll.poll(_KILL_S * 1000):
                    raise StepfastError("a killed process does not end", hint="is the disk hanging?")
        finally:
            os.close(agent)
            os.close(trainer)
        return session.process.pid, agent_pid

    def close(self) -> None:
        """End what still runs. Agents see their trainer's death and end by themselves."""
        for session in list(self._living):
            session.process.kill()
            session.process.wait(_KILL_S)
            for key in [k for k in self._selector.get_map().values() if k.data[0] is session]:
                self._unlisten(key.fd, key.data[1])
            self._forget(session)
        self._selector.close()

    # ------------------------------------------------------------------ inside
    def _wait_settled(self, session: Session) -> None:
        """Until the agent has nothing to write: how much is durable then depends on the steps, not on this disk."""
        deadline = time.monotonic() + _KILL_S
        never = select.poll()
        while standing_of(session.run_path).waiting:
            if time.monotonic() > deadline:
                raise StepfastError(
                    f"the first checkpoint was not durable within {_KILL_S:g} s", hint="is the disk hanging?"
                )
            never.poll(_LOOK_S * 1000)

    def _agent_of(self, session: Session) -> int:
        holder = RunLock(session.run_path).holder() or {}
        pid = holder.get("pid")
        if not isinstance(pid, int) or holder.get("trainer_pid") != session.process.pid:
            raise AgentLost(f"the agent of {session.name} is not there", hint="start the demo again")
        return pid

    def _listen(self, fd: int, session: Session, what: str) -> None:
        os.set_blocking(fd, False)
        self._pending[fd] = b""
        self._selector.register(fd, selectors.EVENT_READ, (session, what))

    def _unlisten(self, fd: int, what: str) -> None:
        self._selector.unregister(fd)
        del self._pending[fd]
        if what == "batch":
            os.close(fd)  # the other one belongs to the process object

    def _is_heard(self, session: Session) -> bool:
        return any(key.data[0] is session for key in self._selector.get_map().values())

    def _forget(self, session: Session) -> None:
        self._living.remove(session)
        for stream in (session.process.stdin, session.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _read(self, fd: int, session: Session, what: str) -> Iterator[Asked | Said]:
        data = os.read(fd, 65536)
        lines = (self._pending[fd] + data).split(b"\n")
        if data:
            self._pending[fd] = lines.pop()
        else:
            self._unlisten(fd, what)
        for line in lines:
            if not line:
                continue
            if what == "batch":
                session.batch = int(line)
                yield Asked(session=session, batch=session.batch)
            else:
                text = line.decode("utf-8", "replace")
                session.said.append(text)
                yield Said(session=session, line=text)
