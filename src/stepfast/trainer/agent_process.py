"""The agent seen from the trainer: started, spoken to, its slots, its death."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from stepfast.core.errors import AgentLost, StorageFailed
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
BYE_DEADLINE_S = 30.0


class AgentProcess:
    """One agent, from start to end. Not shared with forked children."""

    def __init__(self, *, path: str, mode: str, script: str, keep_newest: int) -> None:
        assert mode in RESUME_MODES
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
        self.slots: list[Slot] = []
        self._free: set[int] = set()
        self._is_asking = False
        self._kept: list[Message] = []
        self._pid = os.getpid()
        self._channel.send(
            Open(
                path=path,
                mode=mode,  # type: ignore[arg-type]
                script=script,
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
            answer = self._wait(lambda m: isinstance(m, (Opened, Refused)), OPEN_DEADLINE_S, "did not open the run")
        except ChannelClosed as error:
            raise AgentLost(
                f"the agent did not open the run: {self.how_it_died()}",
                hint="agent.log in the run may say more; start again to go on from the last checkpoint",
            ) from error
        if isinstance(answer, Refused):
            self._reap()
            raise refusals.as_error(answer)
        assert isinstance(answer, Opened)
        return answer

    def ask_for_slots(self, size: int, count: int) -> None:
        """Have the first slots made ready while the loop goes on. `reserve` says so when there is no room."""
        assert not self.slots
        self._channel.send(Reserve(sizes=[size] * count))
        self._is_asking = True

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
            self._channel.send(Reserve(sizes=[size] * number))
            answer = self._wait_slots()
            if isinstance(answer, Slots):
                self._attach(answer, ahead=False)
                return
            if number == 1:
                raise refusals.as_error(answer)

    def wait_free_slot(self) -> int:
        """A slot nobody reads or writes. Blocks while the agent is still writing all of them."""
        self._sort_in(self._channel.poll())
        if not self._free:
            self._wait(lambda m: isinstance(m, Free), SLOT_DEADLINE_S, "is still writing the snapshots before")
        return self._free.pop()

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def event(self, kind: str, **fields: object) -> None:
        self._channel.send(Event(fields={"event": kind, **fields}))

    def poll(self) -> list[Message]:
        """What came, slots sorted in. Raises ChannelClosed when the agent is gone."""
        self._sort_in(self._channel.poll())
        if any(isinstance(message, (Slots, Refused)) for message in self._kept):
            self.take_slots()
        messages, self._kept = self._kept, []
        return messages

    def drain(self, deadline_s: float, on_message: Callable[[Message], None]) -> None:
        """Wait until everything that was sent is durable or has failed."""
        number = time.monotonic_ns() & 0x7FFF_FFFF
        self._channel.send(Drain(id=number))
        deadline = time.monotonic() + deadline_s
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise AgentLost(
                    f"the agent did not finish writing within {deadline_s:g} s", hint="is the disk hanging?"
                )
            for message in self._receive(left_s):
                if isinstance(message, Drained) and message.id == number:
                    return
                if self._is_asking and isinstance(message, (Slots, Refused)):
                    self._kept.append(message)
                    continue
                on_message(message)

    def close(self, reason: str) -> None:
        """Say goodbye and wait until it is gone. Nothing is waiting any more."""
        if os.getpid() != self._pid:
            return
        with contextlib.suppress(ChannelClosed, TimeoutError):
            self._channel.send(Bye(reason=reason))
        self._reap()

    def how_it_died(self) -> str:
        try:
            status = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "it closed its channel"
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def _reap(self) -> None:
        for slot in self.slots:
            slot.close()
        self.slots = []
        try:
            self._process.wait(timeout=BYE_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=BYE_DEADLINE_S)
        self._channel.close()

    def _wait_slots(self) -> Slots | Refused:
        answer = self._wait(
            lambda m: isinstance(m, (Slots, Refused)), RESERVE_DEADLINE_S, "did not make room for a snapshot"
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
                raise AgentLost(f"the agent {complaint} within {deadline_s:g} s", hint="is the disk hanging?")
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
