"""What is recorded of the surroundings of a run: versions, threads, commit. Named at a resume when it differs."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepfast import __version__
from stepfast.files.mounts import DURABLE, IN_MEMORY, mount_of


def versions() -> dict[str, str]:
    found = {"stepfast": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy"):
        if (module := sys.modules.get(name)) is not None:
            found[name] = str(module.__version__)
    return found


def git_commit() -> str | None:
    """The commit the script's directory is at, if it is a git checkout."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = Path(main).resolve().parent if main else Path.cwd()
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=2.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words: `torch 2.12.0 before, 2.13.0 now`."""
    return [
        f"{key} {was.get(key)} before, {now.get(key)} now"
        for key in sorted({*was, *now})
        if was.get(key) != now.get(key)
    ]


def weak_file_system(path: Path) -> str | None:
    """A sentence when checkpoints there may not survive a power cut."""
    mount = mount_of(path)
    if mount is None or mount.kind in DURABLE:
        return None
    if mount.kind in IN_MEMORY:
        return f"{path} lies in memory ({mount.kind}): checkpoints survive kill -9, but no restart of the machine"
    return f"{path} lies on {mount.kind}: checkpoints survive kill -9; after a power cut nothing is promised there"
