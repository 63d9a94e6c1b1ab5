"""The reader of the toy store: what it promises about any crash state."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from tests.crash.explore import Harm


def listed(home: Path) -> list[int]:
    found = [re.fullmatch(r"step-(\d+)", path.name) for path in home.iterdir()] if home.is_dir() else []
    return sorted(int(match[1]) for match in found if match)


def verify(folder: Path) -> str:
    try:
        outer = json.loads((folder / "manifest").read_bytes())
        if hashlib.sha256(outer["body"].encode()).hexdigest() != outer["digest"]:
            return "the manifest is damaged"
        model = (folder / "model").read_bytes()
        if hashlib.sha256(model).hexdigest() != json.loads(outer["body"])["model"]:
            return "the model is damaged"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except ValueError:
        return "the manifest is damaged"
    return ""


def check(where: Path, promises: tuple[str, ...]) -> Harm | None:
    home = where / "checkpoints"
    steps = listed(home)
    for step in steps:
        if trouble := verify(home / f"step-{step}"):
            return Harm(kind="half", what=f"step {step} is listed, but {trouble}")
    said = [promise.split() for promise in promises]
    committed = [int(step) for what, step in said if what == "commit"]
    pruned = [int(step) for what, step in said if what == "prune"]
    if lost := set(committed) - set(pruned) - set(steps):
        return Harm(kind="lost", what=f"acknowledged steps {sorted(lost)} are gone")
    latest = where / "refs" / "latest"
    if not latest.exists():
        return Harm(kind="lost", what="refs/latest is gone") if committed else None
    named = re.fullmatch(r"step-(\d+)", latest.read_text())
    if named is None or int(named[1]) not in steps:
        return Harm(kind="broken", what="refs/latest names no checkpoint")
    if int(named[1]) < max(committed, default=0):
        return Harm(kind="lost", what="refs/latest went back")
    return None
