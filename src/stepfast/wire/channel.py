"""Frames with messages over one stream socket. Every wait has a deadline. One thread owns a channel."""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from stepfast.wire.messages import FRAME_LIMIT_BYTES, MAX_SLOTS, Message, decode, encode

_LENGTH = struct.Struct("<I")
_READ_BYTES = 64 << 10  # larger ones come from the kernel anew each time


class ChannelClosed(ConnectionError):
    """The other side is gone, or this side was closed. Nothing more will come."""


class BadFrame(ChannelClosed):
    """A frame that is no message of ours. The channel was closed: the next frame cannot be found."""


class FrameTooLong(ValueError):
    """A message that no frame holds. Nothing of it was sent."""


class Channel:
    """Sends and receives messages.

    A signal handler that raises in the middle of a frame loses nothing: what was not sent stays queued and
    leaves before the next frame; what was read stays in the buffer.
    """

    def __init__(self, sock: socket.socket, *, limit_bytes: int = FRAME_LIMIT_BYTES, max_fds: int = MAX_SLOTS) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._limit_bytes = limit_bytes
        self._max_fds = max_fds
        self._received = bytearray()
        self._messages: deque[Message] = deque()
        self._fds: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._end: ChannelClosed | None = None

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_ended(self) -> bool:
        """True when nothing more can be read from the socket; poll() may still hold messages."""
        return self._end is not None

    def send(self, message: Message, fds: Sequence[int] = (), *, timeout_s: float = 10.0) -> None:
        """Send one message; descriptors travel with its first byte and stay open here.

        Raises:
            ChannelClosed: the other side is gone.
            TimeoutError: it did not read in time. The frame stays queued.
            FrameTooLong: nothing was sent.
        """
        body = encode(message)
        if len(body) > self._limit_bytes:
            raise FrameTooLong(
                f"{type(message).__name__} takes {len(body):,} bytes; a frame holds {self._limit_bytes:,}"
            )
        self._unsent.append((memoryview(_LENGTH.pack(len(body)) + body), tuple(fds)))
        deadline = time.monotonic() + timeout_s
        while not self._flush():
            self._wait(select.POLLOUT, deadline, f"the other side did not read within {timeout_s:g} s")

    def flush(self) -> bool:
        """Whether all that was sent has left; sends what the other side takes now, without waiting."""
        return self._flush()

    def recv(self, timeout_s: float) -> Message:
        """The next message.

        Raises:
            ChannelClosed: the stream ended and every message was given out; BadFrame when it ended in one.
            TimeoutError: none came in time.
        """
        deadline = time.monotonic() + timeout_s
        while not self._messages:
            if self._end is not None:
                raise self._end
            if not self._read():
                self._wait(select.POLLIN, deadline, f"no message within {timeout_s:g} s")
        return self._messages.popleft()

    def poll(self) -> list[Message]:
        """All messages that are there, without waiting. The end is raised once none are left."""
        while self._end is None and self._read():
            pass
        if not self._messages and self._end is not None:
            raise self._end
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def take_fds(self, count: int) -> list[int]:
        """The descriptors that came with the message just received; the caller closes them."""
        if len(self._fds) < count:
            raise BadFrame(f"{count} descriptors were announced, {len(self._fds)} came")
        return [self._fds.popleft() for _ in range(count)]

    def close(self) -> None:
        """Close the socket and every descriptor nobody took. May be called again."""
        self._end = self._end or ChannelClosed("the channel was closed on this side")
        while self._fds:
            os.close(self._fds.popleft())
        self._unsent.clear()
        self._sock.close()

    def _wait(self, event: int, deadline: float, complaint: str) -> None:
        left_s = deadline - time.monotonic()
        poll = select.poll()
        poll.register(self._sock, event)
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise TimeoutError(complaint)

    def _flush(self) -> bool:
        while self._unsent:
            data, fds = self._unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                sent = self._sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            except OSError as error:
                raise ChannelClosed(f"the other side is gone: {error.strerror}") from error
            if sent == len(data):
                self._unsent.popleft()
            else:
                self._unsent[0] = (data[sent:], ())
        return True

    def _read(self) -> bool:
        """Read once. False when nothing was there."""
        room = socket.CMSG_SPACE(self._max_fds * 4) if self._max_fds else 0
        try:
            # Without room for them the kernel drops descriptors somebody sends us.
            data, ancillary, _, _ = self._sock.recvmsg(_READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data, ancillary = b"", []
        except OSError as error:
            self._end = ChannelClosed(f"the channel cannot be read: {error.strerror}")
            return True
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
                self._fds.extend(fds)
        if not data:
            self._end = (
                BadFrame(f"the stream ended inside a frame, after {len(self._received)} bytes of it")
                if self._received
                else ChannelClosed("the other side closed the channel")
            )
            return True
        self._received += data
        self._parse()
        return True

    def _parse(self) -> None:
        at = 0
        with memoryview(self._received) as received:
            while len(received) - at >= _LENGTH.size and self._end is None:
                (size,) = _LENGTH.unpack_from(received, at)
                if not 0 < size <= self._limit_bytes:
                    self._end = BadFrame(f"a frame of {size:,} bytes was refused; the limit is {self._limit_bytes:,}")
                elif len(received) - at - _LENGTH.size < size:
                    break
                else:
                    at += _LENGTH.size
                    try:
                        self._messages.append(decode(received[at : at + size]))
                    except msgspec.DecodeError as error:
                        self._end = BadFrame(f"a frame was refused: {error}")
                    at += size
        del self._received[:at]
