"""Finds the code in the pages. Not a test: the tests of samples and of the example's diff read with it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_MARKER = re.compile(
    r"<!-- sample: (?P<name>[a-z0-9-]+) -->\n+```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```", re.M | re.S
)
_FENCE = re.compile(r"^```python", re.M)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A block of code that a reader may copy. `page` is the file it stands in."""

    name: str
    page: Path
    language: str
    code: str


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def find_samples(page: Path) -> list[Sample]:
    """The marked blocks of a page, in order."""
    return [
        Sample(name=found["name"], page=page, language=found["language"], code=found["code"])
        for found in _MARKER.finditer(page.read_text("utf-8"))
    ]


def count_python_blocks(page: Path) -> int:
    return len(_FENCE.findall(page.read_text("utf-8")))


def example_diff() -> str:
    """What turns the plain loop into the one that survives."""
    before, after = (
        (ROOT / "examples" / name).read_text("utf-8").splitlines(keepends=True) for name in ("before.py", "after.py")
    )
    return "".join(difflib.unified_diff(before, after, "before.py", "after.py"))


if __name__ == "__main__":
    (ROOT / "examples/after.diff").write_text(example_diff(), encoding="utf-8")
