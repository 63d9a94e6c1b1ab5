"""The order of the demo: two runs of one script, a kill, a second start, the comparison, the picture."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from stepfast.cli.demo.screen import Screen, screen_for_terminal
from stepfast.cli.demo.sessions import Asked, Ended, Said, Session, Sessions
from stepfast.cli.demo.verdict import Verdict, judge
from stepfast.cli.output import put, talk
from stepfast.core.errors import NotARun, RunHeld, StepfastError
from stepfast.files.durable import make_dirs, replace_file
from stepfast.files.locks import RunLock
from stepfast.report import lines
from stepfast.report.bars import AGAIN, LEFT, NEW, SKIPPED, cells
from stepfast.report.plain import escaped
from stepfast.report.timeline import Timeline, draw_timeline
from stepfast.store.run_directory import RunDirectory

TOTAL = 1270
"""Batches of an epoch: 20,305 samples, 16 at a time. Only the bars need it; the verdict counts what it finds."""

KILL_AT = 900
SECONDS_A_BATCH = 3.22
"""The pace the case was described with; the picture counts minutes at it."""

MARK = ".stepfast-demo"
KILLED, UNDISTURBED = "killed", "undisturbed"
SCRIPT, PICTURE = "train.py", "two-sessions.svg"
_BAR_WIDTH = 60


def demo(directory: Path, environment: Mapping[str, str]) -> int:
    """Run it; 0 when the killed run ended exactly like the one that was never killed."""
    if importlib.util.find_spec("torch") is None:
        raise StepfastError(
            "the demo trains with PyTorch, and this Python has none",
            hint=f"{sys.executable} -m pip install torch",
        )
    began = time.monotonic()
    directory = _prepared(directory)
    with screen_for_terminal() as screen:
        _play(directory, environment, screen)
    verdict = judge(RunDirectory.open(directory / KILLED), RunDirectory.open(directory / UNDISTURBED))
    picture = _draw(directory, verdict)
    _tell(verdict, directory, picture, time.monotonic() - began)
    return 0 if verdict.is_exact else 1


def _prepared(directory: Path) -> Path:
    """An empty folder with the script in it; what an earlier demo left there is taken away, nothing else is touched."""
    directory = Path(os.path.abspath(directory))
    if os.path.lexists(directory):
        if not directory.is_dir():
            raise NotARun(f"{directory} is not a directory", hint="stepfast demo --dir NEW-FOLDER")
        if os.listdir(directory) and not (directory / MARK).is_file():
            raise NotARun(
                f"{directory} is not empty, and no earlier demo made it", hint="stepfast demo --dir NEW-FOLDER"
            )
    for name in (KILLED, UNDISTURBED):
        run = directory / name
        if run.is_dir() and (holder := RunLock(run).holder()) is not None:
            raise RunHeld(
                f"another demo is running in {directory} (process {holder.get('trainer_pid', 'unknown')})",
                hint="wait for its end, or: stepfast demo --dir NEW-FOLDER",
            )
    try:
        make_dirs(directory, 0o755)
        replace_file(directory / MARK, b"The command `stepfast demo` made this folder; its next start empties it.\n")
        replace_file(directory / ".gitignore", b"*\n")
        for name in (KILLED, UNDISTURBED):
            if (directory / name).is_dir():
                shutil.rmtree(directory / name)
        (directory / PICTURE).unlink(missing_ok=True)
        replace_file(directory / SCRIPT, (Path(__file__).parent / "script" / SCRIPT).read_bytes())
    except OSError as error:
        raise StepfastError(
            f"cannot prepare {error.filename or directory}: {error.strerror}",
            hint="stepfast demo --dir A-FOLDER-YOU-MAY-WRITE",
        ) from error
    return directory


def _play(directory: Path, environment: Mapping[str, str], screen: Screen) -> None:
    ours = {name: value for name, value in environment.items() if not name.startswith("STEPFAST_")}
    killed = directory / KILLED
    screen.say(
        f"One training script, two runs of it in {directory}. One is never killed; the other is killed with kill -9 "
        f"when batch {lines.count(KILL_AT)} is asked for, and started again."
    )
    with contextlib.closing(Sessions(directory / SCRIPT, ours)) as sessions:
        screen.begin("never killed", total=TOTAL, seen=0)
        sessions.start("never killed", directory / UNDISTURBED)
        screen.begin("session 1", total=TOTAL, seen=0)
        first = sessions.start("session 1", killed, wait_at=KILL_AT)
        for event in sessions.events():
            name = event.session.name
            if isinstance(event, Said):
                screen.line(name, event.line)
            elif isinstance(event, Ended):
                _check_ended(event, screen)
            elif event.session is first and event.batch == KILL_AT and not first.was_killed:
                screen.at(name, event.batch)
                _kill(sessions, first, screen)
                screen.begin("session 2", total=TOTAL, seen=KILL_AT)
                sessions.start("session 2", killed)
            elif isinstance(event, Asked):
                screen.at(name, event.batch)


def _kill(sessions: Sessions, session: Session, screen: Screen) -> None:
    trainer_pid, agent_pid = sessions.kill(session)
    left = ", ".join(map(lines.count, RunDirectory.open(session.run_path).steps())) or "none"
    screen.state(session.name, "killed")
    screen.say(
        f"kill -9 {trainer_pid} {agent_pid}: trainer and agent are dead, batch {lines.count(KILL_AT)} was asked for "
        f"and never came. Left on the disk: the checkpoint of step {left}"
    )


def _check_ended(event: Ended, screen: Screen) -> None:
    session = event.session
    if session.was_killed:
        return
    if event.status != 0:
        said = "\n".join(map(escaped, session.said[-20:]))
        how = f"signal {-event.status}" if event.status < 0 else f"exit status {event.status}"
        raise StepfastError(f"{session.name} of the demo failed ({how}). It said:\n{said}", hint="see the lines above")
    screen.state(session.name, "finished")


def _draw(directory: Path, verdict: Verdict) -> Path:
    timeline = Timeline(
        total=verdict.total,
        checkpoint=verdict.skipped,
        crash=verdict.crash,
        seconds_a_batch=SECONDS_A_BATCH,
        later=verdict.later,
    )
    path = directory / PICTURE
    sentence = verdict.sentence()
    said = sentence[0].upper() + sentence[1:] + "."
    drawing = draw_timeline(timeline, verdict=said) if verdict.is_exact else draw_timeline(timeline, notes=[said])
    replace_file(path, drawing.encode(), 0o644)
    return path


def _tell(verdict: Verdict, directory: Path, picture: Path, took_s: float) -> None:
    """The verdict is what the demo is for, so it goes to stdout."""

    def bar(parts: list[tuple[int, str]]) -> str:
        return cells(_BAR_WIDTH, verdict.total, parts)

    def minutes(num_batches: int) -> str:
        return lines.minutes(num_batches * SECONDS_A_BATCH)

    second = [(verdict.skipped, SKIPPED), (verdict.crash, AGAIN), (verdict.total, NEW)]
    words = [
        "",
        f"session 1  {bar([(verdict.crash, NEW)])}  {lines.count(verdict.crash)} finished, killed",
        f"session 2  {bar([part for part in second if part[0]])}  {verdict.sums()}",
        f"           {SKIPPED} skipped  {AGAIN} computed again  {NEW} computed  {LEFT} not reached",
        "",
        f"At {SECONDS_A_BATCH:g} s a batch: {minutes(verdict.crash + verdict.again + verdict.new)} for both sessions, "
        f"{minutes(verdict.total)} without the kill; the {lines.count(verdict.again)} computed again cost "
        f"{minutes(verdict.again)}.",
        "",
        f"  {verdict.seen_before.words()}",
        "compared with the run that was never killed:",
        *(f"  {compared.words()}" for compared in verdict.with_undisturbed),
        "",
    ]
    put("\n".join(map(escaped, words)))
    put(verdict.sentence(), bold=True, style="green" if verdict.is_exact else "red")
    put(f"\npicture  {escaped(picture)}")
    put(f"look     stepfast ls {escaped(directory / KILLED)}")
    put(f"script   {escaped(directory / SCRIPT)}")
    talk(f"It took {lines.duration(took_s)}.")
