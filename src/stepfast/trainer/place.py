"""Which device this process trains on."""

from __future__ import annotations

import sys

from stepfast.trainer.environment import local_rank


def device() -> str:
    """`cuda:LOCAL_RANK` where torch is loaded and sees a GPU, else `cpu`. Works before Run and without a launcher."""
    torch = sys.modules.get("torch")
    return f"cuda:{local_rank()}" if torch is not None and torch.cuda.is_available() else "cpu"
