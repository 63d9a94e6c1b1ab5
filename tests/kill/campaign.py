"""Runs cases: a child for every start, killed at its moment, until the run has ended; then it must be exact."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import stepfast
from tests.forkserver import ROOT, Child, ForkServer
from tests.kill import outcome
from tests.kill.cases import Case
from tests.kill.moments import FIRED, MOMENT, Moment
from tests.kill.outcome import Outcome
from tests.kill.variants import Variant

TIMEOUT_S = 40.0
SOURCE = Path(stepfast.__file__).parents[1]
AGENT_SITE = ROOT / "tests" / "kill" / "agent_site"
# The first optimizer of a process imports torch._dynamo, which takes longer than everything else together.
IMPORTS = (
    "torch", "torch.utils.data", "torch.optim", "torch._dynamo", "numpy",
    "stepfast.trainer.run", "stepfast.frameworks.torch.kit", "tests.kill.faults",
)  # fmt: skip
BAD_WORDS = ("is not as it was before the crash", "warning:", "passed over")
"""Nothing of this may stand on the stderr of any start. (Loader workers of a killed trainer may leave a traceback.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a case came to; exact when there are no complaints."""

    case: Case
    complaints: tuple[str, ...]

    def __str__(self) -> str:
        return "exact" if not self.complaints else "; ".join(self.complaints[:6])


@contextmanager
def campaign_server() -> Iterator[ForkServer]:
    with ForkServer(IMPORTS) as server:
        yield server


@dataclass(slots=True)
class Campaign:
    """Knows the undisturbed run of every loop once it was asked for."""

    server: ForkServer
    folder: Path
    undisturbed: dict[str, Outcome] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    """What each start of the newest case wrote to stderr."""

    def start(self, variant: Variant, run_path: Path, moment: Moment | None = None, fired: Path | None = None) -> Child:
        env = {"PYTHONPATH": os.pathsep.join(map(str, (AGENT_SITE, SOURCE, ROOT)))}
        # Agents start cold: compiled once, even where the environment says to keep no bytecode.
        env |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode")}
        if moment is not None:
            env |= {MOMENT: str(moment), FIRED: str(fired)}
        args = [str(variant.path), str(run_path), *variant.args]
        return self.server.start("tests.kill.faults:main", args, env, self.folder)

    def before(self, variant: Variant) -> str:
        """What the script prints that has no Stepfast in it."""
        child = self.server.start_script(variant.before_path, cwd=self.folder)
        assert child.wait(TIMEOUT_S) == 0, child.stderr
        return _result(child)

    def bare(self, variant: Variant) -> str:
        """What the script prints with `Run(None)`."""
        args = [str(variant.path), "none", *variant.args]
        child = self.server.start("tests.kill.faults:main", args, cwd=self.folder)
        assert child.wait(TIMEOUT_S) == 0, child.stderr
        return _result(child)

    def run_undisturbed(self, variant: Variant, name: str) -> Outcome:
        path = self.folder / f"{variant.name}-{name}"
        child = self.start(variant, path)
        status = child.wait(TIMEOUT_S)
        assert status == 0, f"undisturbed, {variant.name} ends with {status}:\n{child.stderr}"
        found = outcome.read(path, _result(child))
        assert found.facts["cursor"][0] == variant.num_steps, f"{variant.name} has another length than variants.py says"
        assert list(found.rows) == list(range(variant.num_steps))
        return found

    def expected(self, variant: Variant) -> Outcome:
        if variant.name not in self.undisturbed:
            self.undisturbed[variant.name] = self.run_undisturbed(variant, "undisturbed")
        return self.undisturbed[variant.name]

    def path_of(self, case: Case) -> Path:
        return self.folder / case.name.replace("/", "-")

    def forget(self, case: Case) -> None:
        """Thousands of runs do not fit on a disk."""
        path = self.path_of(case)
        shutil.rmtree(path)
        for fired in path.parent.glob(f"{path.name}.fired-*"):
            fired.unlink()

    def run(self, case: Case) -> Verdict:
        expected = self.expected(case.variant)
        path = self.path_of(case)
        children: list[Child] = []
        complaints: list[str] = []
        try:
            for number, moment in enumerate(case.moments):
                fired = path.with_name(f"{path.name}.fired-{number}")
                children.append(self.start(case.variant, path, moment, fired))
                complaints += _check_death(children[-1], moment, fired)
            if case.moments[-1].victim != "agent":
                children.append(self.start(case.variant, path))
                complaints += _check_end(children[-1])
            if not complaints:
                complaints += outcome.differences(expected, outcome.read(path, _result(children[-1])))
        except TimeoutError as error:
            complaints.append(str(error))
        finally:
            end_orphans(children)
        self.said = [child.stderr for child in children]
        complaints += [f"a start said {line!r}" for said in self.said for line in said.splitlines() if _is_bad(line)]
        return Verdict(case=case, complaints=tuple(complaints))


def _result(child: Child) -> str:
    """What the script has printed of what its loop ended with."""
    return "\n".join(line for line in child.stdout.splitlines() if line.startswith("result "))


def _check_death(child: Child, moment: Moment, fired: Path) -> list[str]:
    """The fault must have fired, and the child must have died of it, and of nothing else."""
    status = child.wait(TIMEOUT_S)
    if not fired.exists() or fired.read_text("utf-8") != str(moment):
        return [f"{moment} never came; the start ended with {status}: {child.stderr[-600:]}"]
    if moment.victim != "agent":
        return (
            [] if status == -signal.SIGKILL else [f"killed at {moment} it ended with {status}: {child.stderr[-600:]}"]
        )
    complaints = _check_end(child)
    if "the agent died (signal 9)" not in child.stderr:
        complaints.append(f"the death of the agent at {moment} was not told")
    return complaints


def _check_end(child: Child) -> list[str]:
    status = child.wait(TIMEOUT_S)
    return [] if status == 0 else [f"the last start ended with {status}: {child.stderr[-1500:]}"]


def _is_bad(line: str) -> bool:
    return any(words in line for words in BAD_WORDS)


def end_orphans(children: list[Child]) -> None:
    """Loader workers of killed trainers live for some seconds more: through the next starts, and not beyond."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
