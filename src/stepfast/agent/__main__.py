"""`python -P -m stepfast.agent --channel-fd N`: started by a trainer, never by hand."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys

from stepfast.wire.channel import Channel


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stepfast.agent", description="Started by a trainer, never by hand.")
    parser.add_argument("--channel-fd", type=int, required=True)
    fd = parser.parse_args(arguments).channel_fd
    # A terminal's Ctrl-C, and a scheduler that signals every process of a job, are for the trainer:
    # this process ends when the trainer does, after the last save is durable.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.umask(0o077)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)

    from stepfast.agent.service import serve

    return serve(sock, Channel(sock, max_fds=0))


if __name__ == "__main__":
    sys.exit(main())
