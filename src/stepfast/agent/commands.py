"""Commands on the run's socket: who may, what they may say, until when. Not what comes of it."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from stepfast.wire import run_socket
from stepfast.wire.channel import Channel, ChannelClosed
from stepfast.wire.messages import (
    COMMAND_FRAME_LIMIT_BYTES,
    Ask,
    Message,
    Refused,
    Standing,
    Status,
    ToCommand,
)

MAX_CONNECTIONS = 16
MAX_REQUESTS = 16
QUESTION_S = 3.0
ANSWER_S = 600.0


@dataclass(slots=True, kw_only=True)
class _Connection:
    channel: Channel
    deadline_s: float
    request: int | None = None


class Commands:
    """Takes questions, forwards what only the trainer can answer, and brings the answers back."""

    def __init__(
        self,
        run_path: str,
        selector: selectors.BaseSelector,
        *,
        forward: Callable[[int, Ask], None],
        standing: Callable[[], Standing],
    ) -> None:
        self._run_path = run_path
        self._selector = selector
        self._forward = forward
        self._standing = standing
        self._connections: list[_Connection] = []
        # Requests the trainer has not answered; None when the command has gone meanwhile.
        self._requests: dict[int, _Connection | None] = {}
        self._last_id = 0
        self._listener = run_socket.listen(run_path)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def answer(self, requests: Iterable[int], message: ToCommand) -> None:
        """Answer requests; unknown ids are nobody's any more."""
        for number in requests:
            one = self._requests.pop(number, None)
            if one is not None:
                self._reply(one, message)

    def answer_all(self, message: ToCommand) -> None:
        self.answer(list(self._requests), message)

    def deadline_s(self) -> float:
        """When `expire` is to be called next."""
        return min((one.deadline_s for one in self._connections), default=float("inf"))

    def expire(self) -> None:
        now = time.monotonic()
        for one in [one for one in self._connections if one.deadline_s <= now]:
            if one.request is None:
                self._forget(one)
                continue
            hint = "is it in a long step, or stopped? `stepfast status` tells; the request stands"
            self._reply(one, Refused(code="failed", message="the trainer reached no boundary in time", hint=hint))

    def close(self) -> None:
        """Stop listening, cut off everybody, remove the socket."""
        self._selector.unregister(self._listener)
        self._listener.close()
        run_socket.unlink(self._run_path)
        for one in list(self._connections):
            self._forget(one)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        if len(self._connections) >= MAX_CONNECTIONS or not run_socket.is_allowed(sock):
            sock.close()
            return
        channel = Channel(sock, limit_bytes=COMMAND_FRAME_LIMIT_BYTES, max_fds=0)
        one = _Connection(channel=channel, deadline_s=time.monotonic() + QUESTION_S)
        self._connections.append(one)
        self._selector.register(channel, selectors.EVENT_READ, partial(self._read, one))

    def _read(self, one: _Connection) -> None:
        try:
            for message in one.channel.poll():
                self._question(one, message)
        except ChannelClosed:
            self._forget(one)

    def _question(self, one: _Connection, message: Message) -> None:
        if one not in self._connections:
            return
        if isinstance(message, Status) and one.request is None:
            self._reply(one, self._standing())
        elif isinstance(message, Ask) and one.request is None:
            if len(self._requests) >= MAX_REQUESTS:
                busy = f"{MAX_REQUESTS} requests are waiting for the trainer already"
                self._reply(one, Refused(code="failed", message=busy, hint="wait for the next boundary"))
                return
            self._last_id += 1
            one.request = self._last_id
            one.deadline_s = time.monotonic() + min(max(message.timeout_s, 0.0), ANSWER_S)
            self._requests[one.request] = one
            self._forward(one.request, message)
        else:
            self._forget(one)

    def _reply(self, one: _Connection, message: ToCommand) -> None:
        # An answer fits into an empty socket buffer: who has no room for it is gone.
        with contextlib.suppress(ChannelClosed, TimeoutError):
            one.channel.send(message, timeout_s=0.0)
        self._forget(one)

    def _forget(self, one: _Connection) -> None:
        if one not in self._connections:
            return
        self._connections.remove(one)
        self._selector.unregister(one.channel)
        one.channel.close()
        if one.request in self._requests:
            self._requests[one.request] = None
