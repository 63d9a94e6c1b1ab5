"""Whoever copies code from a page gets code that runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.samples import ROOT, Sample, count_python_blocks, find_samples, pages

PAGES_WITH_SAMPLES = [page for page in pages() if find_samples(page)]


def command_of(sample: Sample, folder: Path) -> list[str]:
    if sample.language == "python":
        script = folder / f"{sample.name}.py"
        script.write_text(sample.code, encoding="utf-8")
        return [sys.executable, script.name]
    assert sample.language == "sh", f"{sample.page.name}: a sample in {sample.language!r} cannot be run"
    return ["bash", "-euo", "pipefail", "-c", sample.code]


def run(sample: Sample, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it as a reader would: a new process, the command `stepfast` on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPFAST_")}
    return subprocess.run(
        command_of(sample, folder),
        cwd=folder,
        env={**environment, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_WITH_SAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_samples_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    for sample in find_samples(page):
        done = run(sample, tmp_path)
        assert done.returncode == 0, f"{sample.name}:\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_the_example_prints_the_same_with_and_without_us(tmp_path: Path) -> None:
    printed = []
    for name in ("before.py", "after.py"):
        code = (ROOT / "examples" / name).read_text("utf-8")
        done = run(Sample(name=name, page=ROOT / "examples", language="python", code=code), tmp_path)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0].count("accuracy") == 3
    assert printed[0] == printed[1]


def test_every_block_of_python_is_run() -> None:
    """A block that is only to be looked at is marked `py`; what is marked `python` can be copied."""
    for page in pages():
        num_samples = sum(sample.language == "python" for sample in find_samples(page))
        assert num_samples == count_python_blocks(page), f"{page.name}: a python block without a sample mark"


def test_names_of_samples_are_used_once_in_a_page() -> None:
    for page in PAGES_WITH_SAMPLES:
        names = [sample.name for sample in find_samples(page)]
        assert len(names) == len(set(names)), page.name
