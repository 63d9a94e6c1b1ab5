"""The entry point: commands, their arguments, exit statuses. Everything heavy is imported inside a command.

`stepfast --help` has to be there at once, so nothing but click is imported here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from stepfast import __version__

EXIT_CODES = """\b
Exit status:
    0  done
    1  failed, or something is damaged or needs a hand
    2  wrong usage; nothing was touched
   75  a trainer that was stopped on purpose: start it again to go on
   93  do not start it again: it would fail the same way
  130  ended by Ctrl-C (SIGINT)
  143  ended by SIGTERM"""

EPILOG = f"""A RUN is the directory given to stepfast.Run. RUN@500, RUN@latest and RUN@TAG are checkpoints of it.
Data goes to stdout, talk to stderr; NO_COLOR=1 switches colour off.

{EXIT_CODES}"""

RUN = click.argument("run", metavar="RUN", type=click.Path(path_type=str))
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group(epilog=EPILOG, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stepfast", message="%(prog)s %(version)s")
def stepfast() -> None:
    """Exact training resume: crash anywhere, end with the same model."""


@stepfast.command()
@click.option(
    "--dir",
    "directory",
    default="stepfast-demo",
    show_default=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where the runs, the script and the picture go.",
)
def demo(directory: Path) -> int:
    """Kill a training run and see it end with the same model."""
    from stepfast.cli.demo.command import demo as command

    return command(directory, os.environ)


@stepfast.command()
@click.argument("place", metavar="[FOLDER|RUN]", default=".", type=click.Path(path_type=str))
@AS_JSON
def ls(place: str, as_json: bool) -> int:
    """Checkpoints of a run, or the runs below a folder."""
    from stepfast.cli.ls import ls as command

    return command(place, as_json=as_json)


@stepfast.command()
@RUN
@AS_JSON
def status(run: str, as_json: bool) -> int:
    """What a run does now, and what a crash now would cost."""
    from stepfast.cli.status import status as command

    return command(run, as_json=as_json)


@stepfast.command()
@RUN
@click.option("-n", "--last", metavar="N", type=click.IntRange(min=1), help="Only the last N events.")
@AS_JSON
def log(run: str, last: int | None, as_json: bool) -> int:
    """What happened in a run: starts, saves, failures, resumes."""
    from stepfast.cli.log import log as command

    return command(run, last=last, as_json=as_json)


@stepfast.command()
@click.argument("checkpoint", metavar="RUN[@STEP]", type=click.Path(path_type=str))
@AS_JSON
def show(checkpoint: str, as_json: bool) -> int:
    """One checkpoint: where it stands, its files, its leaves."""
    from stepfast.cli.show import show as command

    return command(checkpoint, as_json=as_json)


@stepfast.command()
@click.argument("checkpoint", metavar="RUN[@STEP]", type=click.Path(path_type=str))
@AS_JSON
def verify(checkpoint: str, as_json: bool) -> int:
    """Read every byte of checkpoints and compare digests."""
    from stepfast.cli.verify import verify as command

    return command(checkpoint, as_json=as_json)


@stepfast.command()
@RUN
@click.option("--name", metavar="TAG", help="Keep it for good, as RUN@TAG.")
@click.option("--timeout", "timeout_s", metavar="SECONDS", default=600.0, type=click.FloatRange(1, 600))
def save(run: str, name: str | None, timeout_s: float) -> int:
    """Make a checkpoint of a training run at its next boundary."""
    from stepfast.cli.ask import save as command

    return command(run, name=name, timeout_s=timeout_s)


@stepfast.command()
@RUN
@click.option("--timeout", "timeout_s", metavar="SECONDS", default=600.0, type=click.FloatRange(1, 600))
def stop(run: str, timeout_s: float) -> int:
    """Save at the next boundary and end the training, to go on later."""
    from stepfast.cli.ask import stop as command

    return command(run, timeout_s=timeout_s)


@stepfast.command()
@RUN
@AS_JSON
def doctor(run: str, as_json: bool) -> int:
    """What is in order with a run, what is not, and the fix."""
    from stepfast.cli.doctor import doctor as command

    return command(run, as_json=as_json)


def main(arguments: list[str] | None = None) -> int:
    """Run one command and give its exit status."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # names and bars may hold letters that the terminal's encoding has not
            reconfigure(errors="backslashreplace")
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        with stepfast.make_context("stepfast", given) as context:
            status = stepfast.invoke(context)
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code
    except Exception as error:
        from stepfast.cli.failing import exit_status_of

        return exit_status_of(error)
    except KeyboardInterrupt:
        return 130
