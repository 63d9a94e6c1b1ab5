"""A pytest plugin for runs in a broken copy: is it the copy that is tested, and which test was red first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_TREE = Path(os.environ["MUTANT_TREE"])
_RED = Path(os.environ["MUTANT_RED"])


def pytest_report_header() -> str:
    import stepfast

    where = Path(stepfast.__file__).resolve()
    if not where.is_relative_to(_TREE.resolve()):
        raise pytest.UsageError(f"{where} was imported, not the copy in {_TREE}")
    return f"stepfast: {where}"


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def _note(report: pytest.CollectReport | pytest.TestReport) -> None:
    if report.failed and not _RED.exists():
        _RED.write_text(report.nodeid)
