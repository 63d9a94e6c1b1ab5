"""The example shows the difference that README speaks of: five lines, and no line of the body moves."""

from __future__ import annotations

import re

from tests.docs.samples import ROOT, example_diff


def changes(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if re.match(r"[+-](?![+-]{2} )\s*\S", line)]


def test_the_diff_is_that_of_the_two_files() -> None:
    stored = (ROOT / "examples/after.diff").read_text("utf-8")
    assert stored == example_diff(), "make it again: python -m tests.docs.samples"


def test_five_lines_are_new() -> None:
    new = [line for line in changes(example_diff()) if line.startswith("+")]
    assert len(new) == 5


def test_readme_shows_the_same_changes() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"```diff\n(.*?)```", readme, re.S)
    assert block is not None
    assert sorted(changes(block[1])) == sorted(changes(example_diff()))
