"""What decides torch's bits besides the train state: threads, deterministic kernels, devices, CPU capability."""

from __future__ import annotations

from typing import Any

import torch


def determinism() -> dict[str, Any]:
    """Recorded with every checkpoint; a resume names what differs."""
    return {
        "threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def switch_deterministic_on() -> None:
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def scalar(value: object) -> float | None:
    """One number, or None when it is not one."""
    if isinstance(value, torch.Tensor):
        return float(value.detach().item()) if value.numel() == 1 and not value.is_complex() else None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def seed(number: int) -> None:
    """Every global generator from one number."""
    import random

    import numpy as np

    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)
