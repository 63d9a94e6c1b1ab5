"""Draws the picture of README and docs again: `python -m tests.report.draw_asset`."""

from __future__ import annotations

from pathlib import Path

from stepfast.report.timeline import THE_CASE, THE_CASE_NOTE, draw_timeline

if __name__ == "__main__":
    target = Path(__file__).parents[2] / "docs/assets/two-sessions.svg"
    target.write_text(draw_timeline(THE_CASE, notes=[THE_CASE_NOTE]), encoding="utf-8")
    print(target)
