"""Which framework the script uses, by the module names of its model's classes. Only that one is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from stepfast.core.errors import UsageError
from stepfast.core.protocols import Kit

_KITS = {"torch": "stepfast.frameworks.torch.kit"}


def default_kit() -> Kit:
    """For leaves without a model."""
    kit: Kit = importlib.import_module(_KITS["torch"]).KIT
    return kit


def kit_for(model: object) -> Kit:
    first = next(iter(model.values()), None) if isinstance(model, Mapping) else model
    for kind in type(first).__mro__:
        if (place := _KITS.get(kind.__module__.split(".")[0])) is not None:
            kit: Kit = importlib.import_module(place).KIT
            return kit
    raise UsageError(
        f"model= is a {type(first).__module__}.{type(first).__qualname__}, which is no torch.nn.Module",
        hint="pass model=your_module, or model={'name': module, ...}",
    )
