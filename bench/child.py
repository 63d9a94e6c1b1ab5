"""One fresh process that measures one case and writes what it found: `python -m bench.child CASE WORK RESULT SEED`."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path

from bench import others

MODULES = {
    "big": "bench.big_state",
    "loop": "bench.whole_loop",
    "small": "bench.small_leaves",
    "start": "bench.start_up",
}


def main() -> None:
    case, work, result, seed = sys.argv[1:]
    random.seed(int(seed))
    module = importlib.import_module(MODULES[case])
    before = others.read()
    found = module.measure(Path(work))
    found["others"] = [others.share(before, others.read())]
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
