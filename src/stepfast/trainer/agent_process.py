"""The agent seen from the trainer: started, spoken to, its slots, its death."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from stepfast.core.errors import AgentLost, StateNotStorable, StorageFailed, UsageError
from stepfast.memory.slot import Slot
from stepfast.policy.options import RESUME_MODES
from stepfast.trainer import refusals
from stepfast.wire.channel import Channel, ChannelClosed
from stepfast.wire.messages import (
    Bye,
    Drain,
    Drained,
    Event,
    Free,
    Message,
    Open,
    Opened,
    Refused,
    Reserve,
    Slots,
)

OPEN_DEADLINE_S = 60.0
RESERVE_DEADLINE_S = 120.0
SLOT_DEADLINE_S = 600.0
SEND_DEADLINE_S = 10.0
CLOSED_DEADLINE_S = 30.0
"""From the end of its channel to the agent's own end."""
QUIET_WAIT_S = 2.0

_left_behind: list[tuple[str, subprocess.Popen[bytes]]] = []
"""Agents that go on writing after we stopped waiting, and the run of each."""


class AgentSilent(AgentLost):
    """The agent did not read or answer before a deadline. It lives, and may do so yet."""


class AgentProcess:
    """One agent, from start to end. Not shared with forked children."""

    def __init__(self, *, path: str, mode: str, script: str, keep_newest: int) -> None:
        assert mode in RESUME_MODES
        _wait_for_earlier(path)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stepfast.agent", "--channel-fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._channel = Channel(ours)
        self._path = path
        self.slots: list[Slot] = []
        self._free: set[int] = set()
        self._is_asking = False
        self._kept: list[Message] = []
        self._pid = os.getpid()
        self._channel.send(
            Open(
                path=path,
                mode=mode,  # type: ignore[arg-type]
                script=script.encode("utf-8", "backslashreplace").decode(),
                trainer_pid=os.getpid(),
                host=socket.gethostname(),
                keep_newest=keep_newest,
            )
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_opened(self) -> Opened:
        """The run is ours; or the refusal as the named error it is."""
        try:
            answer = self._wait(lambda m: isinstance(m, (Opened, Refused)), OPEN_DEADLINE_S, "has not opened the run")
        except ChannelClosed as error:
            raise AgentLost(
                f"the agent did not open the run: {self.how_it_died()}",
                hint="agent.log in the run may say more; start again to go on from the last checkpoint",
            ) from error
        if isinstance(answer, Refused):
            self.discard()
            raise refusals.as_error(answer)
        assert isinstance(answer, Opened)
        return answer

    def ask_for_slots(self, size: int, count: int) -> None:
        """Have the first slots made ready while the loop goes on. `reserve` says so when there is no room."""
        assert not self.slots
        self._ask(Reserve(sizes=[size] * count))

    def take_slots(self) -> None:
        """Wait for slots that were asked for; there may be none."""
        if not self._is_asking:
            return
        answer = self._wait_slots()
        self._is_asking = False
        if isinstance(answer, Slots):
            self._attach(answer, ahead=True)
        elif answer.code != StorageFailed.code:
            self._kept.append(answer)  # not about memory: the run directory has vanished

    def reserve(self, size: int, count: int) -> None:
        """New slots in place of the old ones, fewer when memory is short."""
        self.take_slots()
        for slot in self.slots:
            slot.close()
        self.slots, self._free = [], set()
        for number in range(count, 0, -1):
            self._ask(Reserve(sizes=[size] * number))
            answer = self._wait_slots()
            self._is_asking = False
            if isinstance(answer, Slots):
                self._attach(answer, ahead=False)
                return
            if number == 1:
                raise refusals.as_error(answer)

    def wait_free_slot(self) -> int:
        """A slot nobody reads or writes. Blocks while the agent is still writing all of them."""
        if not self._free:
            self._sort_in(self._channel.poll())
        if not self._free:
            self._wait(lambda m: isinstance(m, Free), SLOT_DEADLINE_S, "is still writing the snapshots before")
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """A slot from `wait_free_slot` that was not sent."""
        self._free.add(slot)

    def can_take_a_save(self) -> bool:
        """Without waiting: whether it reads what we send, and a slot is free or there are none yet."""
        with contextlib.suppress(ChannelClosed):  # the next call tells
            self._sort_in(self._channel.poll())
            has_answered = not self._is_asking or any(isinstance(message, (Slots, Refused)) for message in self._kept)
            return self._channel.flush() and has_answered and bool(self._free or not self.slots)
        return True

    def check_reads(self) -> None:
        """AgentSilent, at once, when what was sent before still waits."""
        if not self._channel.flush():
            raise AgentSilent("the agent does not read what it was sent before", hint="was it stopped (SIGSTOP)?")

    def send(self, message: Message) -> None:
        """
        Raises:
            ChannelClosed: the agent is gone.
            AgentSilent: it does not read. When something waits already, at once, and nothing was sent; else this
                message waits now, and leaves when the agent reads.
            StateNotStorable: too long, or no text that can be sent. Nothing was sent.
        """
        self.check_reads()
        self._send(message, SEND_DEADLINE_S)

    def _send(self, message: Message, timeout_s: float) -> None:
        try:
            self._channel.send(message, timeout_s=timeout_s)
        except TimeoutError as error:
            raise AgentSilent(f"the agent does not read: {error}", hint="was it stopped (SIGSTOP)?") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise StateNotStorable(f"it cannot be handed to the agent: {ascii(str(error))[1:-1]}") from error

    def event(self, kind: str, **fields: object) -> None:
        self.send(Event(fields={"event": kind, **fields}))

    def poll(self) -> list[Message]:
        """What came, slots sorted in. Raises ChannelClosed when the agent is gone and all it said was given out."""
        try:
            self._sort_in(self._channel.poll())
            if any(isinstance(message, (Slots, Refused)) for message in self._kept):
                self.take_slots()
        except ChannelClosed:
            if not self._kept:
                raise
        return self.take_kept()

    def take_kept(self) -> list[Message]:
        """What came while something else was waited for."""
        messages, self._kept = self._kept, []
        return messages

    def drain(self, deadline_s: float, on_message: Callable[[Message], None]) -> None:
        """Wait until everything that was sent is durable or has failed."""
        number = time.monotonic_ns() & 0x7FFF_FFFF
        deadline = time.monotonic() + deadline_s
        self._send(Drain(id=number), deadline_s)
        while True:
            kept, self._kept = self._kept, []
            for message in kept:
                if self._is_asking and isinstance(message, (Slots, Refused)):
                    self._kept.append(message)
                else:
                    on_message(message)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise AgentSilent(
                    f"the agent did not finish writing within {deadline_s:g} s", hint="is the disk hanging?"
                )
            for message in self._receive(left_s):
                if isinstance(message, Drained) and message.id == number:
                    return
                self._kept.append(message)

    def close(self, reason: str, *, wait_s: float, say: Callable[[str], None]) -> None:
        """Say goodbye and wait until it is gone, `wait_s` at most. It is never killed: it writes what it was sent,
        and outlives us for that."""
        if os.getpid() != self._pid:
            return
        try:
            self._unmap()
            with contextlib.suppress(ChannelClosed, TimeoutError):
                self._channel.send(Bye(reason=reason), timeout_s=min(wait_s, SEND_DEADLINE_S))
            if wait_s > QUIET_WAIT_S and not self._has_ended(QUIET_WAIT_S):
                say("waiting for the checkpoint to be durable")
            if not self._has_ended(max(0.0, wait_s - QUIET_WAIT_S)):
                _left_behind.append((self._path, self._process))
        finally:
            self._channel.close()

    def discard(self) -> None:
        """It is dead or has closed its channel: nothing can be said any more, and another one needs the lock."""
        self._unmap()
        self._channel.close()
        if not self._has_ended(CLOSED_DEADLINE_S):
            self._process.kill()
            self._process.wait()

    def how_it_died(self) -> str:
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "it closed its channel"
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def _unmap(self) -> None:
        for slot in self.slots:
            slot.close()
        self.slots, self._free = [], set()

    def _has_ended(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _ask(self, reserve: Reserve) -> None:
        self.check_reads()
        self._is_asking = True  # also when it is read too late: the answer comes some time
        self.send(reserve)

    def _wait_slots(self) -> Slots | Refused:
        answer = self._wait(
            lambda m: isinstance(m, (Slots, Refused)), RESERVE_DEADLINE_S, "has not made room for a snapshot"
        )
        assert isinstance(answer, (Slots, Refused))
        return answer

    def _attach(self, made: Slots, *, ahead: bool) -> None:
        self.slots = [Slot.attach(fd, made.size, ahead=ahead) for fd in self._channel.take_fds(made.count)]
        self._free = set(range(made.count))

    def _wait(self, wanted: Callable[[Message], bool], deadline_s: float, complaint: str) -> Message:
        deadline = time.monotonic() + deadline_s
        while True:
            for index, message in enumerate(self._kept):
                if wanted(message):
                    return self._kept.pop(index)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise AgentSilent(f"the agent {complaint} after {deadline_s:g} s", hint="is the disk hanging?")
            for message in self._receive(left_s):
                if isinstance(message, Free) and wanted(message):
                    return message
                self._kept.append(message)

    def _receive(self, timeout_s: float) -> list[Message]:
        try:
            message = self._channel.recv(timeout_s)
        except TimeoutError:
            return []
        if isinstance(message, Free):
            self._free.add(message.slot)
        return [message]

    def _sort_in(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, Free):
                self._free.add(message.slot)
            else:
                self._kept.append(message)


def _wait_for_earlier(path: str) -> None:
    """An agent that this process left behind on this run holds its lock until all is written."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{ascii(path)[1:-1]} is not a path in UTF-8", hint="choose another path") from None
    for one in [*_left_behind]:
        if one[0] == path or one[1].poll() is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # then Open is refused, and says who holds the run
                one[1].wait(timeout=OPEN_DEADLINE_S)
            _left_behind.remove(one)
