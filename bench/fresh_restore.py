"""One resume in a fresh process, as after a crash: `python -m bench.fresh_restore WHAT RUN FILE RESULT`.

In a process that has loaded before, memory comes back already faulted in for whoever asks next, which says nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.objects import LEAF_NUMBERS, LEAVES, Leaves, seconds
from stepfast.frameworks.torch.adapter import TorchFramework
from stepfast.restore.restore import restore
from stepfast.store.run_directory import RunDirectory


def main() -> None:
    what, path, file, result = sys.argv[1:]
    torch.set_num_threads(1)
    model = Leaves(LEAVES, LEAF_NUMBERS, empty=True)
    optimizer = torch.optim.AdamW(model.parameters())
    if what.startswith("ours"):
        run = RunDirectory.open(path)
        framework = TorchFramework(model=model, optimizer=optimizer, scheduler=None, scaler=None, extra=None)
        _page_cache([*run.checkpoint_path(run.steps()[-1]).iterdir()], is_cold=what.endswith("cold"))
        found = [seconds(lambda: restore(run, framework, lambda *_: None))]
    else:
        _page_cache([Path(file)], is_cold=what.endswith("cold"))
        loaded: dict[str, Any] = {}
        found = [seconds(lambda: loaded.update(torch.load(file, mmap=False, weights_only=True)))]
        found.append(
            found[0]
            + seconds(lambda: model.load_state_dict(loaded["model"]))
            + seconds(lambda: optimizer.load_state_dict(loaded["optimizer"]))
        )
    Path(result).write_text(json.dumps(found), encoding="utf-8")


def _page_cache(files: Sequence[Path], *, is_cold: bool) -> None:
    """Bring the files into the page cache, or out of it: they are clean, since they were synced."""
    for path in files:
        with open(path, "rb", buffering=0) as file:
            if is_cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while not is_cold and file.read(8 << 20):
                pass


if __name__ == "__main__":
    main()
