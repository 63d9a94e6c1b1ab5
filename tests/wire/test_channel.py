"""Frames: limits, halves, order, descriptors, deadlines, interruption."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from stepfast.wire import messages
from stepfast.wire.channel import BadFrame, Channel, ChannelClosed
from stepfast.wire.messages import (
    Bye,
    Committed,
    Drain,
    Event,
    Free,
    Open,
    Opened,
    Request,
    Reserve,
    Slots,
    Snapshot,
    Span,
)

EXAMPLES = [
    Open(path="/runs/a", mode="auto", script="train.py", trainer_pid=7, host="h"),
    Reserve(sizes=[4096, 4096]),
    Snapshot(slot=0, draft=b"{}\xff\x00", spans=[Span(name="loop.json", offset=4096, size=9)], linked=["a.bin"]),
    Event(fields={"event": "resumed", "step": 2**40, "loss": 0.25, "list": [None, True]}),
    Opened(run_id="ab", fresh=True, moved_to=None, attempt=1),
    Committed(step=5, revision=0, k1_s=0.5, bytes_written=9, manifest_sha256="00", linked_files=["a"], tidied=[1]),
    Request(id=3, what="stop", name=None),
    Bye(reason="the loop ended"),
]


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    one, other = map(Channel, socket.socketpair())
    yield one, other
    one.close()
    other.close()


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_each_message_arrives_as_it_was_sent(channels: tuple[Channel, Channel], message: messages.Message) -> None:
    channels[0].send(message)
    assert channels[1].recv(1) == message


def test_messages_keep_their_order_over_any_split_of_the_stream(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    stream = b"".join(frame(messages.encode(message)) for message in EXAMPLES)
    seen: list[messages.Message] = []
    for at in range(0, len(stream), 3):
        theirs.sendall(stream[at : at + 3])
        seen += channel.poll()
    assert seen == EXAMPLES


def test_the_page_names_every_message() -> None:
    page = (os.path.dirname(__file__), "..", "..", "docs", "internals", "messages.md")
    with open(os.path.join(*page), encoding="utf-8") as file:
        text = file.read()
    for message in messages.Message.__args__:
        names = [field.name for field in msgspec.structs.fields(message)]
        assert f"`{message.__name__}" in text, message
        missing = [name for name in names if f"`{name}`" not in text and f"{name}" not in text]
        assert not missing, (message, missing)


@pytest.mark.parametrize("length", [0xFFFFFFFF, messages.FRAME_LIMIT_BYTES + 1, 0])
def test_a_length_beyond_the_limit_is_refused_before_the_body_comes(
    pair: tuple[Channel, socket.socket], length: int
) -> None:
    channel, theirs = pair
    theirs.sendall(struct.pack("<I", length))
    with pytest.raises(BadFrame, match="refused"):
        channel.recv(1)
    # The stream cannot be picked up again.
    theirs.sendall(frame(messages.encode(Drain(id=1))))
    with pytest.raises(BadFrame):
        channel.poll()


def test_the_limit_itself_is_taken_and_one_byte_more_is_never_sent() -> None:
    ours, theirs = socket.socketpair()
    one, other = Channel(ours, limit_bytes=1000), Channel(theirs, limit_bytes=1000)
    empty = len(messages.encode(Snapshot(slot=0, draft=b"x" * 300, spans=[])))
    fits = Snapshot(slot=0, draft=b"x" * (1000 - empty + 300), spans=[])
    assert len(messages.encode(fits)) == 1000
    one.send(fits)
    assert other.recv(1) == fits
    with pytest.raises(ValueError, match="1,001 bytes"):
        one.send(Snapshot(slot=0, draft=fits.draft + b"x", spans=[]))
    one.close()
    other.close()


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        msgspec.msgpack.encode({"type": "Nonsense"}),
        msgspec.msgpack.encode({"type": "Free"}),
        msgspec.msgpack.encode({"type": "Free", "slot": "0"}),
        msgspec.msgpack.encode({"type": "Open", "path": "a", "mode": "other"}),
        msgspec.msgpack.encode([1, 2]),
        messages.encode(Free(slot=0)) + b"\x00",
        b"\x91" * 5000,
    ],
)
def test_a_body_that_is_no_message_closes_the_channel(pair: tuple[Channel, socket.socket], body: bytes) -> None:
    channel, theirs = pair
    theirs.sendall(frame(messages.encode(Free(slot=1))) + frame(body))
    assert channel.recv(1) == Free(slot=1)
    with pytest.raises(BadFrame, match="refused"):
        channel.recv(1)


def test_a_field_of_a_later_version_is_ignored(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    theirs.sendall(frame(msgspec.msgpack.encode({"type": "Free", "slot": 1, "later": [1]})))
    assert channel.recv(1) == Free(slot=1)


def test_messages_before_the_end_are_given_out_first(channels: tuple[Channel, Channel]) -> None:
    channels[0].send(Free(slot=0))
    channels[0].send(Free(slot=1))
    channels[0].close()
    assert channels[1].poll() == [Free(slot=0), Free(slot=1)]
    with pytest.raises(ChannelClosed):
        channels[1].poll()
    with pytest.raises(ChannelClosed):
        channels[1].recv(1)


def test_half_a_frame_is_an_error_not_a_message(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    theirs.sendall(frame(messages.encode(Free(slot=0)))[:-1])
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(BadFrame, match="inside a frame"):
        channel.recv(1)


def test_sending_to_nobody_is_the_end(channels: tuple[Channel, Channel]) -> None:
    channels[1].close()
    with pytest.raises(ChannelClosed):
        channels[0].send(Free(slot=0))


def test_descriptors_travel_with_their_message_and_close_with_the_channel(
    channels: tuple[Channel, Channel],
) -> None:
    reader, writer = os.pipe()
    try:
        channels[0].send(Free(slot=9))
        channels[0].send(Slots(count=1, size=4096), [writer])
        channels[0].send(Slots(count=1, size=4096), [writer])
        assert channels[1].recv(1) == Free(slot=9)
        assert channels[1].recv(1) == Slots(count=1, size=4096)
        (got,) = channels[1].take_fds(1)
        assert not os.get_inheritable(got)
        os.write(got, b"x")
        os.close(got)
        assert os.read(reader, 1) == b"x"
        assert channels[1].recv(1) == Slots(count=1, size=4096)
        channels[1].close()  # nobody took the second one
        os.close(writer)
        writer = -1
        assert os.read(reader, 1) == b"", "a descriptor is still open"
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)


def test_announced_descriptors_that_did_not_come_are_an_error(channels: tuple[Channel, Channel]) -> None:
    channels[0].send(Slots(count=2, size=4096))
    channels[1].recv(1)
    with pytest.raises(BadFrame, match="2 descriptors were announced, 0 came"):
        channels[1].take_fds(2)


def test_unwanted_descriptors_are_dropped() -> None:
    ours, theirs = socket.socketpair()
    one, other = Channel(ours), Channel(theirs, max_fds=0)
    reader, writer = os.pipe()
    one.send(Free(slot=0), [writer])
    os.close(writer)
    assert other.recv(1) == Free(slot=0)
    assert os.read(reader, 1) == b"", "the other side kept the descriptor"
    os.close(reader)
    one.close()
    other.close()


def test_waiting_has_a_deadline(channels: tuple[Channel, Channel]) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        channels[0].recv(0.05)
    assert 0.04 < time.monotonic() - started < 5
    assert channels[0].poll() == []


def test_sending_to_one_who_does_not_read_has_a_deadline_and_loses_nothing(
    channels: tuple[Channel, Channel],
) -> None:
    big = Snapshot(slot=0, draft=bytes(8 << 20), spans=[])
    with pytest.raises(TimeoutError):
        channels[0].send(big, timeout_s=0.05)
    seen: list[messages.Message] = []
    reader = threading.Thread(target=lambda: seen.extend(channels[1].recv(10) for _ in range(2)))
    reader.start()
    channels[0].send(Free(slot=1))
    reader.join(10)
    assert seen == [big, Free(slot=1)]


def test_ctrl_c_in_the_middle_of_a_frame_does_not_break_the_stream(channels: tuple[Channel, Channel]) -> None:
    big = Snapshot(slot=0, draft=bytes(8 << 20), spans=[])
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            channels[0].send(big, timeout_s=10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    seen: list[messages.Message] = []
    reader = threading.Thread(target=lambda: seen.extend(channels[1].recv(10) for _ in range(2)))
    reader.start()
    channels[0].send(Free(slot=1))
    reader.join(10)
    assert seen == [big, Free(slot=1)]
