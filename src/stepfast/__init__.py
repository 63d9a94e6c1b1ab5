"""Stepfast: training that never loses a step. Importing it imports no framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    "Run": "stepfast.trainer.run",
    "Options": "stepfast.policy.options",
    "Every": "stepfast.policy.triggers",
    "EpochEnd": "stepfast.policy.triggers",
    "On": "stepfast.policy.triggers",
    "Retention": "stepfast.policy.retention",
    "load": "stepfast.trainer.load",
    "peek": "stepfast.trainer.load",
    "rank": "stepfast.trainer.environment",
    "world_size": "stepfast.trainer.environment",
    "device": "stepfast.trainer.place",
    "StepfastError": "stepfast.core.errors",
}
__all__ = sorted(_PLACES)

if TYPE_CHECKING:
    from stepfast.core.errors import StepfastError as StepfastError
    from stepfast.policy.options import Options as Options
    from stepfast.policy.retention import Retention as Retention
    from stepfast.policy.triggers import EpochEnd as EpochEnd
    from stepfast.policy.triggers import Every as Every
    from stepfast.policy.triggers import On as On
    from stepfast.trainer.environment import rank as rank
    from stepfast.trainer.environment import world_size as world_size
    from stepfast.trainer.load import load as load
    from stepfast.trainer.load import peek as peek
    from stepfast.trainer.place import device as device
    from stepfast.trainer.run import Run as Run


def __getattr__(name: str) -> Any:
    if (place := _PLACES.get(name)) is None:
        raise AttributeError(f"module 'stepfast' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
