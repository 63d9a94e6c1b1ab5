"""What went wrong, said on stderr: `error: …`, a blank line, `hint: …`. Unknown errors are not hidden here."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from stepfast.cli.output import wants_colour
from stepfast.core.errors import StepfastError, UsageError
from stepfast.report.plain import escaped_lines


def exit_status_of(error: Exception) -> int:
    """Say it and give the exit status; an error that nobody foresaw is raised again, with its traceback."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message(), file=sys.stderr)
        return UsageError.exit_status
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "stepfast"
        message = error.format_message()
        _say(message[:1].lower() + message[1:].rstrip("."), f"{command} --help")
        return UsageError.exit_status
    if isinstance(error, click.Abort):
        return 130
    if isinstance(error, StepfastError):
        _say(error.message, error.hint)
        return error.exit_status
    if isinstance(error, BrokenPipeError):  # `| head` has seen enough
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
        return 0
    if isinstance(error, PermissionError):
        _say(f"{error.filename or 'a file'} cannot be read: you may not", "ask as its owner")
        return StepfastError.exit_status
    raise error


def _say(message: str, hint: str) -> None:
    word = click.style("error:", fg="red", bold=True) if wants_colour(sys.stderr) else "error:"
    print(f"{word} {escaped_lines(message)}", file=sys.stderr)
    if hint:
        print(f"\nhint: {escaped_lines(hint)}", file=sys.stderr)
