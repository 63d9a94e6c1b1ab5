"""What it costs to import Stepfast and to ask the command for help, above bare Python."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

from bench.objects import seconds

TURNS = 12


def measure(work: Path) -> dict[str, list[float]]:
    command = Path(sys.executable).with_name("stepfast")
    programs = {
        "bare": [sys.executable, "-c", "pass"],
        "import": [sys.executable, "-c", "import stepfast"],
        "names": [sys.executable, "-c", "import stepfast; stepfast.Run"],
    }
    if command.exists() and subprocess.run([command, "--help"], capture_output=True, check=False).returncode == 0:
        programs["help"] = [str(command), "--help"]
    found: dict[str, list[float]] = {f"{name}_s": [] for name in programs}
    for _ in range(TURNS):
        for name, program in random.sample(sorted(programs.items()), len(programs)):
            found[f"{name}_s"].append(_run_s(program, work))
    middle = {key: statistics.median(values) for key, values in found.items()}
    found["import_ms"] = [1e3 * (middle["import_s"] - middle["bare_s"])]
    if "help" in programs:
        found["help_ms"] = [1e3 * middle["help_s"]]
    return found


def _run_s(program: list[str], work: Path) -> float:
    # An installed program has its bytecode; nobody measures compiling it.
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    return seconds(lambda: subprocess.run(program, check=True, stdout=subprocess.DEVNULL, cwd=work, env=kept))
