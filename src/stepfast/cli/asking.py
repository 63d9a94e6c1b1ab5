"""One question to the agent of a run, by the socket in the run's directory, and its answer or the reason for none."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from pathlib import Path

from stepfast.core.errors import AgentLost, NotARun, StepfastError
from stepfast.wire import run_socket
from stepfast.wire.channel import Channel, ChannelClosed
from stepfast.wire.messages import COMMAND_FRAME_LIMIT_BYTES, Ask, Done, Refused, Standing, Status

STATUS_S = 10.0
_MORE_S = 5.0


class NobodyTrains(StepfastError):
    """No agent listens: nobody trains in this run on this machine."""

    code = "nobody-trains"


def standing_of(run_path: str | Path) -> Standing:
    """What the agent says of itself.

    Raises:
        NobodyTrains: there is none.
        AgentLost: it does not answer.
    """
    with contextlib.closing(Channel(_connect(run_path), limit_bytes=COMMAND_FRAME_LIMIT_BYTES, max_fds=0)) as channel:
        answer = _answer(channel, Status(), STATUS_S)
    if not isinstance(answer, Standing):
        raise AgentLost(f"the agent of {run_path} gave no answer that this program knows", hint="same version?")
    return answer


def ask(run_path: str | Path, question: Ask, *, until_gone_s: float = 0.0) -> tuple[Done, bool]:
    """Ask for a save or a stop. Returns what was committed, and whether the agent has ended within `until_gone_s`.

    Raises:
        NobodyTrains: nobody to ask.
        AgentLost: no answer.
        StepfastError: the refusal, in the agent's words.
    """
    with contextlib.ExitStack() as stack:
        sock = _connect(run_path)
        channel = Channel(sock, limit_bytes=COMMAND_FRAME_LIMIT_BYTES, max_fds=0)
        stack.callback(channel.close)
        watch = _watch(sock) if until_gone_s else None
        if watch is not None:
            stack.callback(os.close, watch)
        answer = _answer(channel, question, question.timeout_s + _MORE_S)
        if isinstance(answer, Refused):
            raise StepfastError(answer.message, hint=answer.hint)
        if not isinstance(answer, Done):
            raise AgentLost(f"the agent of {run_path} gave no answer that this program knows", hint="same version?")
        return answer, watch is not None and _has_ended(watch, until_gone_s)


def _connect(run_path: str | Path) -> socket.socket:
    try:
        return run_socket.connect(os.fspath(run_path))
    except (FileNotFoundError, ConnectionRefusedError):
        raise NobodyTrains(
            f"nobody trains in {run_path} on this machine", hint="start its script; `stepfast status` says where it is"
        ) from None
    except PermissionError:
        raise NotARun(
            f"{run_path} belongs to another user, and only its owner may ask", hint="ask as its owner, or as root"
        ) from None
    except TimeoutError:
        raise AgentLost(f"the agent of {run_path} does not take questions", hint="is it stopped (SIGSTOP)?") from None


def _answer(channel: Channel, question: Ask | Status, timeout_s: float) -> object:
    try:
        channel.send(question)
        return channel.recv(timeout_s)
    except TimeoutError:
        raise AgentLost(f"the agent did not answer within {timeout_s:g} s", hint="is it stopped (SIGSTOP)?") from None
    except ChannelClosed:
        raise AgentLost(
            "the agent ended or hung up before it answered", hint="`stepfast log` says what happened"
        ) from None


def _watch(sock: socket.socket) -> int | None:
    """A descriptor that tells the agent's end; None where the agent is in a place whose processes are not seen."""
    try:
        return os.pidfd_open(run_socket.peer(sock)[0])
    except OSError:
        return None


def _has_ended(pidfd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
