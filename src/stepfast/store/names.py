"""Names that come from files: of runs, files, leaves and steps. The format page says what is allowed."""

from __future__ import annotations

import re
import unicodedata

from stepfast.files.strict import is_name

MAX_STEP = 2**63 - 1
MAX_LEAF_NAME_BYTES = 512

MANIFEST = "manifest.json"
LOOP = "loop.json"
LATEST = "latest"

_STEP = re.compile(r"step-([0-9]{8,19})", re.ASCII)
_LATIN = re.compile(r"[ -~]+", re.ASCII)
# Control, format (marks that turn the reading direction are among them), surrogates, separators of lines.
_BAD_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def step_directory(step: int) -> str:
    return f"step-{step:08d}"


def step_of_directory(name: str) -> int | None:
    """The step, or None when this is no name of a checkpoint."""
    match = _STEP.fullmatch(name)
    if match is None or step_directory(int(match[1])) != name or int(match[1]) > MAX_STEP:
        return None
    return int(match[1])


def is_tag(name: object) -> bool:
    """A tag is a file's name that cannot be taken for a step or for `latest`."""
    return is_name(name) and name != LATEST and not str(name).isdigit()


def is_leaf_name(name: object) -> bool:
    """Leaf names are shown and compared. They are never paths, and must not look like ones that climb."""
    if not isinstance(name, str) or not name or name.startswith("/"):
        return False
    if _LATIN.fullmatch(name) is None:
        if any(unicodedata.category(character) in _BAD_CATEGORIES for character in name):
            return False
        if len(name.encode()) > MAX_LEAF_NAME_BYTES:
            return False
    elif len(name) > MAX_LEAF_NAME_BYTES:
        return False
    return not ("." in name and any(part in (".", "..") for part in re.split(r"[/\\]", name)))


def leaf_identity(name: str) -> str:
    """Two names with the same identity would look the same to a person."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)
