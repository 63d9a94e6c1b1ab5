"""Every message, as docs/internals/messages.md lists them. Data only: who acts on them is elsewhere."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FRAME_LIMIT_BYTES = 16 << 20
"""Largest body between trainer and agent."""

COMMAND_FRAME_LIMIT_BYTES = 64 << 10
"""Largest body on the socket that commands connect to."""

MAX_SLOTS = 16


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """Travels as a map that names its type, so that a field can be added."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Where one file of a snapshot lies in its slot."""

    name: str
    offset: int
    size: int


# trainer -> agent


class Open(_Message, frozen=True, kw_only=True):
    path: str
    mode: Literal["auto", "require", "fresh"]
    script: str
    trainer_pid: int
    host: str
    keep_newest: int = 3


class Reserve(_Message, frozen=True, kw_only=True):
    sizes: list[int]


class Snapshot(_Message, frozen=True, kw_only=True):
    """A complete slot. `draft` is the manifest's JSON without the digests of the files in the slot."""

    slot: int
    draft: bytes
    spans: list[Span]
    linked: list[str] = []
    names: list[str] = []
    """Tags besides the draft's name."""
    wanted_by: list[int] = []


class Event(_Message, frozen=True, kw_only=True):
    """One line for the ledger."""

    fields: dict[str, Any]


class Drain(_Message, frozen=True, kw_only=True):
    id: int


class Bye(_Message, frozen=True, kw_only=True):
    reason: str


# agent -> trainer


class Opened(_Message, frozen=True, kw_only=True):
    run_id: str
    fresh: bool
    moved_to: str | None
    attempt: int


class Refused(_Message, frozen=True, kw_only=True):
    """The answer to Open, Reserve or Ask; unasked, the last message when the directory has vanished."""

    code: str
    message: str
    hint: str


class Slots(_Message, frozen=True, kw_only=True):
    """All of one size; `count` descriptors travel with it."""

    count: int
    size: int


class Free(_Message, frozen=True, kw_only=True):
    slot: int


class Committed(_Message, frozen=True, kw_only=True):
    step: int
    revision: int
    k1_s: float
    bytes_written: int
    manifest_sha256: str
    linked_files: list[str]
    tidied: list[int]


class Failed(_Message, frozen=True, kw_only=True):
    """One save failed; training goes on."""

    step: int
    code: str
    message: str
    hint: str


class Request(_Message, frozen=True, kw_only=True):
    """A command asks for a save at the next boundary. The Snapshot that answers names `id` in `wanted_by`."""

    id: int
    what: Literal["save", "stop"]
    name: str | None


class Drained(_Message, frozen=True, kw_only=True):
    id: int


# command -> agent, and its answers (Refused is one, too)


class Ask(_Message, frozen=True, kw_only=True):
    what: Literal["save", "stop"]
    name: str | None = None
    timeout_s: float = 600.0


class Status(_Message, frozen=True, kw_only=True):
    pass


class Done(_Message, frozen=True, kw_only=True):
    step: int
    path: str


class Standing(_Message, frozen=True, kw_only=True):
    """The answer to Status. `step` is the last committed one, `waiting` counts saves not yet durable."""

    run_id: str
    trainer_pid: int
    agent_pid: int
    host: str
    script: str
    since: str
    step: int | None
    waiting: int


FromTrainer = Open | Reserve | Snapshot | Event | Drain | Bye
FromAgent = Opened | Refused | Slots | Free | Committed | Failed | Request | Drained
FromCommand = Ask | Status
ToCommand = Done | Refused | Standing
Message = (
    Open
    | Reserve
    | Snapshot
    | Event
    | Drain
    | Bye
    | Opened
    | Refused
    | Slots
    | Free
    | Committed
    | Failed
    | Request
    | Drained
    | Ask
    | Status
    | Done
    | Standing
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(body: bytes | bytearray | memoryview) -> Message:
    """Raises msgspec.DecodeError (ValidationError included) when the body is no message of ours."""
    return _decoder.decode(body)
