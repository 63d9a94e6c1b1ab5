"""A trainer without a model: starts a real agent, fills slots with bytes, speaks the messages."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from stepfast.core.words import Leaf, StoredFile, round_up
from stepfast.memory.slot import Slot
from stepfast.store.manifest import Manifest, Parent
from stepfast.store.safetensors import build_header
from stepfast.wire import messages, run_socket
from stepfast.wire.channel import Channel
from stepfast.wire.messages import Ask, Bye, Open, Opened, Refused, Reserve, Slots, Snapshot, Span, Status

WAIT_S = 20.0
Files = dict[str, dict[str, bytes] | bytes]
One = TypeVar("One", bound=messages.Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A snapshot as it lies in a slot."""

    data: bytes
    spans: list[Span]
    draft: Manifest

    @property
    def contents(self) -> dict[str, bytes]:
        return {span.name: self.data[span.offset : span.offset + span.size] for span in self.spans}


def lay_out(
    step: int,
    files: Files,
    *,
    run_id: str = "x",
    linked: Sequence[StoredFile] = (),
    name: str | None = None,
    revision: int = 0,
    parent: Parent | None = None,
) -> Laid:
    """`files`: name -> leaves (a tensor file) or bytes (any other)."""
    data = bytearray()
    spans, stored = [], []
    for file_name, content in files.items():
        leaves: tuple[Leaf, ...] = ()
        if isinstance(content, dict):
            header, offsets, size = build_header([(key, "U8", (len(raw),)) for key, raw in content.items()], {})
            raw = header + b"".join(raw for _, raw in sorted(zip(offsets, content.values(), strict=True)))
            leaves = tuple(
                Leaf(
                    name=f"{file_name.partition('.')[0]}/{key}",
                    key=key,
                    dtype="U8",
                    shape=(len(one),),
                    offset=at,
                    size=len(one),
                )
                for (key, one), at in zip(content.items(), offsets, strict=True)
            )
            assert len(raw) == size
        else:
            raw = content
        data += bytes(round_up(len(data)) - len(data))
        spans.append(Span(name=file_name, offset=len(data), size=len(raw)))
        stored.append(StoredFile(name=file_name, size=len(raw), leaves=leaves))
        data += raw
    draft = Manifest(
        run_id=run_id,
        step=step,
        epoch=0,
        batch=step,
        reasons=("steps",),
        created="2020-01-01T00:00:00Z",
        files=(*stored, *linked),
        k0_s=0.001,
        name=name,
        revision=revision,
        parent=parent,
    )
    return Laid(data=bytes(data), spans=spans, draft=draft)


@dataclass(slots=True, kw_only=True)
class Trainer:
    """This process as a trainer, with an agent of its own."""

    channel: Channel
    process: subprocess.Popen[bytes]
    slots: list[Slot] = field(default_factory=list)
    run_id: str = "x"

    @classmethod
    def start(cls) -> Trainer:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stepfast.agent", "--channel-fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        return cls(channel=Channel(ours), process=process)

    def ask_open(
        self, path: Path, mode: Literal["auto", "require", "fresh"] = "auto", keep_newest: int = 3
    ) -> Opened | Refused:
        self.channel.send(
            Open(
                path=str(path),
                mode=mode,
                script="train.py",
                trainer_pid=os.getpid(),
                host=socket.gethostname(),
                keep_newest=keep_newest,
            )
        )
        answer = self.channel.recv(WAIT_S)
        assert isinstance(answer, Opened | Refused)
        return answer

    def open(self, path: Path, mode: Literal["auto", "require", "fresh"] = "auto", keep_newest: int = 3) -> Opened:
        answer = self.ask_open(path, mode, keep_newest)
        assert isinstance(answer, Opened), answer
        self.run_id = answer.run_id
        return answer

    def reserve(self, *sizes: int) -> None:
        for slot in self.slots:
            slot.close()
        self.channel.send(Reserve(sizes=list(sizes)))
        self.take(self.expect(Slots))

    def take(self, answer: Slots) -> None:
        self.slots = [Slot.attach(fd, answer.size) for fd in self.channel.take_fds(answer.count)]

    def send(
        self,
        laid: Laid,
        slot: int = 0,
        linked: Sequence[str] = (),
        wanted_by: Sequence[int] = (),
        names: Sequence[str] = (),
    ) -> None:
        self.slots[slot].view(0, len(laid.data))[:] = laid.data
        self.channel.send(
            Snapshot(
                slot=slot,
                draft=laid.draft.to_json(),
                spans=laid.spans,
                linked=list(linked),
                names=list(names),
                wanted_by=list(wanted_by),
            )
        )

    def expect(self, kind: type[One]) -> One:
        """The next message of this kind; those before it are dropped."""
        while not isinstance(message := self.channel.recv(WAIT_S), kind):
            pass
        return message

    def bye(self, reason: str = "the loop ended") -> int:
        """Leave as a trainer should; gives the agent's exit status."""
        self.channel.send(Bye(reason=reason))
        return self.end()

    def end(self) -> int:
        self.channel.close()
        for slot in self.slots:
            slot.close()
        self.slots.clear()
        return self.process.wait(WAIT_S)

    def stop(self) -> None:
        """Whatever the test left."""
        if self.process.poll() is None:
            self.process.kill()
        self.end()


def command(path: Path) -> Channel:
    return Channel(run_socket.connect(str(path)))


def ask(path: Path, question: Ask | Status) -> messages.Message:
    """What a command does: one question, one answer."""
    channel = command(path)
    try:
        channel.send(question)
        return channel.recv(WAIT_S)
    finally:
        channel.close()


def events(path: Path) -> list[dict[str, Any]]:
    from stepfast.store import ledger

    found, damaged = ledger.read(path / "ledger.jsonl")
    assert damaged == 0
    return found


def wait_gone(pid: int) -> bool:
    """Until a process that is not our child (or not known to be) has ended."""
    import select

    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(WAIT_S * 1000))
    finally:
        os.close(fd)


def main() -> None:
    """A trainer to be killed: `python -m tests.agent.scene RUN MANNER`; says the agent's pid, then waits."""
    path, manner = Path(sys.argv[1]), sys.argv[2]
    trainer = Trainer.start()
    trainer.open(path)
    trainer.reserve(1 << 20, 1 << 20)
    # The agent is stopped, so it cannot have read anything of this before we are dead.
    os.kill(trainer.process.pid, signal.SIGSTOP)
    for number, step in enumerate((10, 20)):
        trainer.send(lay_out(step, {"loop.json": b"{}", "model.safetensors": {"w": bytes([step]) * 70_000}}), number)
    if manner == "half":
        trainer.channel._sock.send(b"\x00\x01\x00\x00half a frame")
    if manner == "worker" and os.fork() == 0:
        signal.pause()  # a loader worker: holds every socket of its parent
    print(json.dumps({"agent": trainer.process.pid}), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
