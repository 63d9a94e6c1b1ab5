"""The agent's loop: one thread, every wait with a deadline. Opening and writing are elsewhere."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stepfast.agent.commands import Commands
from stepfast.agent.slot_pool import SlotPool
from stepfast.agent.trainer_watch import TrainerWatch
from stepfast.agent.writer import Answered, Line, Mark, Save, Writer, now
from stepfast.core.errors import StepfastError
from stepfast.wire.channel import Channel, ChannelClosed
from stepfast.wire.messages import (
    MAX_SLOTS,
    Ask,
    Bye,
    Committed,
    Done,
    Drain,
    Event,
    Failed,
    Free,
    FromAgent,
    Message,
    Open,
    Opened,
    Refused,
    Request,
    Reserve,
    Slots,
    Snapshot,
    Standing,
)

if TYPE_CHECKING:
    from stepfast.agent.opening import OpenRun

OPEN_WAIT_S = 60.0
LAST_WORDS_S = 600.0
LOOK_EVERY_S = 1.0
DYING_S = 1.0
LOG_LIMIT_BYTES = 1 << 20


def serve(sock: socket.socket, channel: Channel) -> int:
    """Live for one trainer. Returns the exit status."""
    watch = TrainerWatch(sock)
    asked = _first_message(channel, watch)
    if not isinstance(asked, Open):
        return 0  # the trainer thought better of it, or died: nothing was touched
    # Imported now: the trainer starts this process long before it asks for the run.
    from stepfast.agent.opening import TrainerDied, open_run

    try:
        opened = open_run(asked, watch)
    except TrainerDied:
        return 0
    except StepfastError as error:
        _send_last(channel, Refused(code=error.code, message=error.message, hint=error.hint))
        return 0
    try:
        _log_to(opened.run.path / "agent.log")
        return Service(channel, watch, asked, opened).run()
    finally:
        opened.lock.release()


class Service:
    """What an agent does between Opened and its end."""

    def __init__(self, channel: Channel, watch: TrainerWatch, asked: Open, opened: OpenRun) -> None:
        self._channel = channel
        self._watch = watch
        self._asked = asked
        self._opened = opened
        self._path = str(opened.run.path)
        self._identity = _identity(self._path)
        self._selector = selectors.DefaultSelector()
        self._slots = SlotPool()
        self._reserving: Reserve | None = None
        self._waiting = 0
        self._step = max(opened.run.steps(), default=None)
        self._trainer_listens = True
        self._end_s: float | None = None
        self._status = 0
        self._writer = Writer(opened, asked.keep_newest)
        self._commands = Commands(self._path, self._selector, forward=self._forward, standing=self._standing)
        self._selector.register(channel, selectors.EVENT_READ, self._read_trainer)
        self._selector.register(watch, selectors.EVENT_READ, self._trainer_died)
        self._selector.register(self._writer, selectors.EVENT_READ, self._read_writer)

    def run(self) -> int:
        opened = self._opened
        line = {"attempt": opened.attempt, "trainer_pid": self._asked.trainer_pid, "host": self._asked.host}
        self._note("opened", **line, script=self._asked.script, mode=self._asked.mode, moved_to=opened.moved_to)
        self._tell(
            Opened(
                run_id=opened.run.run_id,
                fresh=self._step is None,
                moved_to=opened.moved_to,
                attempt=opened.attempt,
            )
        )
        try:
            while not self._has_ended():
                self._turn()
        finally:
            left = Refused(code="failed", message="the trainer has left", hint="start it again, then ask again")
            self._commands.answer_all(left)
            self._commands.close()
            self._channel.close()
        return self._status

    def _turn(self) -> None:
        now_s = time.monotonic()
        until_s = min(now_s + LOOK_EVERY_S, self._commands.deadline_s(), self._end_s or float("inf"))
        for key, _ in self._selector.select(max(0.0, until_s - now_s)):
            # One of them may have been closed by the one before it.
            if key.fd in self._selector.get_map():
                act: Callable[[], None] = key.data
                act()
        self._commands.expire()
        if self._end_s is None and _identity(self._path) != self._identity:
            self._vanished()

    def _has_ended(self) -> bool:
        if self._writer.has_ended:
            self._read_writer()
            # Without having been asked to, it ends only by a fault of ours: its traceback is in agent.log.
            self._status = self._status or int(self._end_s is None)
            return True
        return self._end_s is not None and time.monotonic() >= self._end_s

    # what the trainer says

    def _read_trainer(self) -> None:
        try:
            messages = self._channel.poll()
        except ChannelClosed as error:
            self._stop_listening()
            # Dead, or only silent? The end of the stream comes a little before the pidfd.
            if self._end_s is None and not self._watch.wait_dead(DYING_S):
                self._end("closed", reason=str(error))
            self._end("trainer-died")
            return
        for message in messages:
            self._act(message)

    def _trainer_died(self) -> None:
        """Last words: what a dead process has sent is all there, so reading until nothing comes is enough."""
        self._selector.unregister(self._watch)
        if self._trainer_listens:
            try:
                while messages := self._channel.poll():
                    for message in messages:
                        self._act(message)
            except ChannelClosed:
                pass
        self._stop_listening()
        self._end("trainer-died")

    def _act(self, message: Message) -> None:
        if isinstance(message, Snapshot):
            self._save(message)
        elif isinstance(message, Event):
            self._writer.put(Line(fields={"time": now(), **message.fields}))
        elif isinstance(message, Reserve):
            self._reserving = message
            self._reserve()
        elif isinstance(message, Drain):
            self._writer.put(Mark(id=message.id))
        elif isinstance(message, Bye):
            self._end("closed", reason=message.reason)
        else:
            self._stop_listening()
            self._end("closed", reason=f"the trainer sent {type(message).__name__}, which is not its to send")

    def _save(self, message: Snapshot) -> None:
        try:
            slot = self._slots.take(message.slot)
        except ValueError as error:
            self._tell(Failed(step=-1, code="usage", message=str(error), hint=""))
            return
        self._waiting += 1
        self._writer.put(Save(snapshot=message, slot=slot, received_s=time.monotonic()))

    def _reserve(self) -> None:
        """New slots come when the older ones are idle: memory is never taken twice."""
        if self._reserving is None or not self._slots.is_idle:
            return
        sizes, self._reserving = self._reserving.sizes, None
        if not 1 <= len(sizes) <= MAX_SLOTS:
            self._tell(Refused(code="usage", message=f"{len(sizes)} slots; 1 to {MAX_SLOTS} can be", hint=""))
            return
        try:
            size, fds = self._slots.reserve(sizes)
        except StepfastError as error:
            self._tell(Refused(code=error.code, message=error.message, hint=error.hint))
            return
        self._tell(Slots(count=len(fds), size=size), fds)
        self._slots.populate()

    # what the writer says

    def _read_writer(self) -> None:
        for result in self._writer.results():
            if isinstance(result, Answered):
                self._answer(result)
                continue
            if isinstance(result, Free):
                self._slots.free(result.slot)
            elif isinstance(result, Committed):
                self._step = result.step
                self._waiting -= 1
            elif isinstance(result, Failed):
                self._waiting -= 1
            self._tell(result)
        self._reserve()

    def _answer(self, result: Answered) -> None:
        if isinstance(result.outcome, Committed):
            path = str(self._opened.run.checkpoint_path(result.outcome.step))
            self._commands.answer(result.wanted_by, Done(step=result.outcome.step, path=path))
        else:
            failed = result.outcome
            refused = Refused(code=failed.code, message=failed.message, hint=failed.hint)
            self._commands.answer(result.wanted_by, refused)

    # what commands say

    def _forward(self, number: int, ask: Ask) -> None:
        if self._end_s is None:
            self._tell(Request(id=number, what=ask.what, name=ask.name))

    def _standing(self) -> Standing:
        return Standing(
            run_id=self._opened.run.run_id,
            trainer_pid=self._asked.trainer_pid,
            agent_pid=os.getpid(),
            host=self._asked.host,
            script=self._asked.script,
            since=self._opened.since,
            step=self._step,
            waiting=self._waiting,
        )

    # ends

    def _tell(self, message: FromAgent, fds: list[int] | None = None) -> None:
        if not self._trainer_listens:
            return
        try:
            self._channel.send(message, fds or ())
        except (ChannelClosed, TimeoutError) as error:
            self._stop_listening()
            if not self._watch.wait_dead(0.0):
                self._end("closed", reason=f"the trainer does not take messages: {error}")

    def _stop_listening(self) -> None:
        if self._trainer_listens:
            self._trainer_listens = False
            self._selector.unregister(self._channel)

    def _note(self, event: str, **fields: object) -> None:
        self._writer.put(Line(fields={"event": event, "time": now(), **fields}))

    def _end(self, event: str, **fields: object) -> None:
        """Write what is waiting, then end. The first reason counts."""
        if self._end_s is not None:
            return
        self._end_s = time.monotonic() + LAST_WORDS_S
        self._note(event, **fields)
        self._writer.end()

    def _vanished(self) -> None:
        gone = Refused(
            code="not-a-run",
            message=f"the run directory {self._path} has vanished or was moved while training went on",
            hint="start again; a run is moved or removed while nobody trains in it",
        )
        self._commands.answer_all(gone)
        self._tell(gone)
        self._status = 1
        self._end("closed", reason="the run directory has vanished")


def _first_message(channel: Channel, watch: TrainerWatch) -> Message | None:
    deadline_s = time.monotonic() + OPEN_WAIT_S
    while time.monotonic() < deadline_s:
        try:
            return channel.recv(LOOK_EVERY_S)
        except TimeoutError:
            if watch.wait_dead(0.0):
                return None
        except ChannelClosed:
            return None
    return None


def _send_last(channel: Channel, message: FromAgent) -> None:
    with contextlib.suppress(ChannelClosed, TimeoutError):  # when nobody is left to read it
        channel.send(message)
    channel.close()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _log_to(path: Path) -> None:
    """What goes wrong in this process from here on is written beside the run, at most 1 MiB of it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except OSError:
        return  # a run without a log is still a run
    if os.fstat(fd).st_size > LOG_LIMIT_BYTES:
        os.ftruncate(fd, 0)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
