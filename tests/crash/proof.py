"""What each test of a workload asks: enough states, nothing lost, nothing half."""

from __future__ import annotations

from pathlib import Path

from tests.crash.effects import History
from tests.crash.explore import Known, Report, explore
from tests.crash.run_check import check
from tests.crash.workloads import Workload, trace

ENOUGH_TREES = 100


def prove(workload: Workload, folder: Path) -> tuple[History, Known]:
    history, known = trace(workload, folder), set[tuple[bytes, tuple[str, ...]]]()
    report: Report = explore(history, check, known=known)
    print(f"{workload.name}: {report}")
    assert not report.findings, f"{len(report.findings)} bad states, the first:\n{report.findings[0]}"
    assert len(report.trees) >= ENOUGH_TREES, report
    return history, known
