"""Objects with `state_dict` and `load_state_dict`, and random generators: schedules, scalers, what `extra=` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stepfast.core import codec
from stepfast.core.errors import UsageError
from stepfast.frameworks.torch import rng
from stepfast.frameworks.torch.tensors import TorchForeign


class Extra:
    """One object or a dict of them under one heading of the train state."""

    def __init__(self, heading: str, value: object) -> None:
        self.heading = heading
        if value is None:
            self.objects: dict[str, Any] = {}
        elif isinstance(value, Mapping) and not hasattr(value, "state_dict"):
            self.objects = {str(name): item for name, item in value.items()}
        else:
            self.objects = {"": value}
        for name, item in self.objects.items():
            stateful = hasattr(item, "state_dict") and hasattr(item, "load_state_dict")
            if not stateful and not rng.is_generator(item):
                raise UsageError(
                    f"{self._path(name)} is a {type(item).__name__}, which has no state_dict and load_state_dict",
                    hint="give it both methods, or keep its values in run.state",
                )

    def names(self) -> set[str]:
        return set(self.objects)

    def encode(self, foreign: TorchForeign) -> dict[str, Any]:
        return {name: codec.encode(_state(item), self._path(name), foreign) for name, item in self.objects.items()}

    def apply(self, trees: dict[str, Any], foreign: TorchForeign) -> None:
        for name, item in self.objects.items():
            state = codec.decode(trees[name], foreign)
            if rng.is_generator(item):
                rng.restore_generator(item, state)
            else:
                item.load_state_dict(state)

    def _path(self, name: str) -> str:
        return f"{self.heading}.{name}" if name else self.heading


def _state(item: Any) -> Any:
    if rng.is_generator(item):
        return rng.capture_generator(item)
    state = item.state_dict()
    if isinstance(item, torch.nn.Module):  # an OrderedDict with a _metadata attribute: only the tensors are state
        return dict(state)
    return state
