"""A copy of the working tree with one slip in it, an interpreter that imports only the copy, and pytest in there.

The project is installed in the virtual environment in place, so a copy has to come before it for every process: those
of pytest, their children and the agents, also where a test gives a child an environment of its own. So each copy has
an environment of its own too, whose path has the copy's source before the packages of this one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.sabotages import Sabotage

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("src/stepfast")
MARK = "MUTANT_TREE"
RUN_LIMIT_S = 1800.0
GREEN, RED = 0, (1, 2)


class CannotRun(Exception):
    """Nothing can be said about a sabotage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What pytest said. `red` is the first test that failed; None: all green."""

    red: str | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A tree, its interpreter, and what its runs say."""

    path: Path
    tree: Path
    python: Path

    def pytest(self, arguments: Sequence[str]) -> Outcome:
        """Run until the first red test.

        Raises:
            CannotRun: pytest found no tests, was used wrongly, or tested something else than the copy.
        """
        red, log = self.path / "red", self.path / "pytest.log"
        red.unlink(missing_ok=True)
        command = [str(self.python), "-m", "pytest", "-x", "-p", "tests.mutants.witness"]
        command += [f"--basetemp={self.path / 't'}", *arguments]
        began = time.monotonic()
        with log.open("wb") as to:
            status = self._wait(command, to.fileno())
        seconds = time.monotonic() - began
        # The last lines of a log that was never begun say nothing, so both are looked at.
        first = red.read_text().strip() if red.exists() else ""
        if status is None:
            return Outcome(red=f"no end within {RUN_LIMIT_S:g} s{', ' + first if first else ''}", seconds=seconds)
        if status == GREEN and f"stepfast: {self.tree / PACKAGE}" in log.read_text(errors="replace"):
            return Outcome(red=None, seconds=seconds)
        if status < 0 or (status in RED and first):
            return Outcome(red=first or f"pytest itself, by signal {-status}", seconds=seconds)
        last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise CannotRun(f"pytest ended with {status} in {self.tree}:\n{last}")

    def imported(self) -> list[str]:
        """What three kinds of child import: pytest's, one with an environment of its own, one started like an agent."""
        ask = ["-c", "import stepfast; print(stepfast.__file__)"]
        bare = {"PATH": os.defpath}
        starts = [([], self._environment()), ([], bare), (["-P"], bare)]
        return [
            subprocess.run(
                [str(self.python), *flags, *ask], cwd=cwd, env=env, capture_output=True, text=True, check=True
            ).stdout.strip()
            for cwd in ("/", self.tree)
            for flags, env in starts
        ]

    def _wait(self, command: Sequence[str], to: int) -> int | None:
        process = subprocess.Popen(
            command, cwd=self.tree, env=self._environment(), stdin=subprocess.DEVNULL, stdout=to, stderr=to
        )
        try:
            return process.wait(RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            _kill_leftovers(self.path)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STEPFAST_", "PYTEST_"))}
        return kept | {
            "PYTHONPATH": str(self.tree / "src"),
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "VIRTUAL_ENV": str(self.python.parent.parent),
            MARK: str(self.tree),
            "MUTANT_RED": str(self.path / "red"),
        }


def checked(sabotage: Sabotage) -> str:
    """The source with the slip in it.

    Raises:
        CannotRun: the source has moved on, so the sabotage has to be looked at; or the slip is no Python.
    """
    path = ROOT / PACKAGE / sabotage.file
    text = path.read_text() if path.is_file() else ""
    if (found := text.count(sabotage.old)) != 1:
        raise CannotRun(f"{sabotage.name}: its old text is {found} times in {PACKAGE / sabotage.file}, not once")
    broken = text.replace(sabotage.old, sabotage.new)
    try:
        compile(broken, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise CannotRun(f"{sabotage.name}: {error}") from error
    return broken


@contextlib.contextmanager
def copy(folder: Path, sabotage: Sabotage | None) -> Iterator[Copy]:
    """A fresh copy below `folder`, gone afterwards with every process that was started from it."""
    path = folder / ("0" if sabotage is None else str(1 + len(list(folder.iterdir()))))
    made = Copy(path=path, tree=path / "tree", python=path / "venv/bin/python")
    try:
        _copy_files(made.tree)
        if sabotage is not None:
            (made.tree / PACKAGE / sabotage.file).write_text(checked(sabotage))
        _make_environment(path / "venv", made.tree)
        expected = str(made.tree / PACKAGE / "__init__.py")
        if set(found := made.imported()) != {expected}:
            raise CannotRun(f"{sorted(set(found) - {expected})[0]} would be imported, not {expected}")
        yield made
    finally:
        _kill_leftovers(path)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()  # its name stays taken


def _copy_files(tree: Path) -> None:
    """All files that git tracks, and those it would: a colleague's new module is imported by tracked ones."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    ).stdout
    for name in sorted(set(os.fsdecode(listed).split("\0")) - {""}):
        source, target = ROOT / name, tree / name
        if not source.is_file():  # deleted and not committed yet
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def _make_environment(path: Path, tree: Path) -> None:
    """An interpreter with the packages of ours, the copy's source before them.

    A line of a .pth file that is a folder is put on the path, and the .pth files in there are not read: so the one
    that installs the project in place has no effect.
    """
    venv.EnvBuilder(with_pip=False, symlinks=True).create(path)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(path), "platbase": str(path)}))
    folders = dict.fromkeys([str(tree / "src"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (packages / "copy.pth").write_text("\n".join(folders) + "\n")
    ours, theirs = Path(sys.executable).parent, path / "bin"
    for command in ours.iterdir():
        target = theirs / command.name
        if target.exists() or not command.is_file():
            continue
        with command.open("rb") as file:
            is_script = file.read(2) == b"#!"
        if is_script:
            target.write_bytes(command.read_bytes().replace(os.fsencode(ours), os.fsencode(theirs), 2))
            target.chmod(0o755)
        else:
            target.symlink_to(command)


def _kill_leftovers(path: Path) -> None:
    """End what was started from a copy and lives on: by id, and only what names the copy's own folder."""
    name = os.fsencode(path) + b"/"
    deadline_s = time.monotonic() + 10.0
    while (alive := [pid for pid in _processes() if _belongs(pid, name)]) and time.monotonic() < deadline_s:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                try:
                    # Looked at again: the number cannot pass to another process while we hold the descriptor.
                    if _belongs(pid, name):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)
        time.sleep(0.02)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _belongs(pid: int, name: bytes) -> bool:
    folder = Path(f"/proc/{pid}")
    try:
        if folder.stat().st_uid != os.getuid() or b") Z " in (folder / "stat").read_bytes():
            return False
        environment = (folder / "environ").read_bytes().split(b"\0")
        started = (folder / "cmdline").read_bytes().split(b"\0")[0].startswith(name)
    except OSError:
        return False
    return started or any(one.startswith(MARK.encode() + b"=" + name) for one in environment)
