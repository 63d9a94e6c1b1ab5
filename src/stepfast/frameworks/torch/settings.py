"""Settings as constructed: what the script built before Run, to compare at the next start and to change on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from stepfast.frameworks.torch.extra import Extra

_MOVING = {"last_epoch", "base_lrs", "best", "num_bad_epochs", "cooldown_counter", "verbose"}


class Constructed:
    """Optimizer and schedule settings as they were when Run was built."""

    def __init__(
        self, models: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer], schedules: Extra
    ) -> None:
        self._values: dict[str, object] = {}
        for name, model in models.items():
            self._values[_key("model", name, "class")] = type(getattr(model, "_orig_mod", model)).__name__
        for name, optimizer in optimizers.items():
            self._values[_key("optimizer", name, "class")] = type(optimizer).__name__
            for number, group in enumerate(optimizer.param_groups):
                head = _key("optimizer", name) + (f".group{number}" if number else "")
                for key, value in group.items():
                    if key not in ("params", "initial_lr"):
                        self._values[f"{head}.{key}"] = value
        for name, schedule in schedules.objects.items():
            self._values[_key("scheduler", name, "class")] = type(schedule).__name__
            for key, value in schedule.state_dict().items():
                if key not in _MOVING and not key.startswith("_"):
                    self._values[_key("scheduler", name, key)] = value

    def settings(self) -> dict[str, object]:
        """The comparable ones, as JSON values; callables and objects are left out."""
        return {key: plain for key, value in self._values.items() if (plain := _plain(value)) is not None}

    def change(
        self,
        keys: Iterable[str],
        old: Mapping[str, object],
        optimizers: Mapping[str, torch.optim.Optimizer],
        schedules: Extra,
    ) -> None:
        """Put the new values of `keys` into restored objects. A learning rate that a schedule has already moved is
        scaled by new / old, so that the schedule goes on from the new base."""
        for key in keys:
            for name, optimizer in optimizers.items():
                for number, group in enumerate(optimizer.param_groups):
                    head = _key("optimizer", name) + (f".group{number}" if number else "")
                    setting = key.removeprefix(f"{head}.")
                    if setting == key or setting not in group or key not in self._values:
                        continue
                    if setting == "lr" and schedules.objects:
                        _rescale(optimizer, number, _number(old.get(key)), _number(self._values[key]), schedules)
                    else:
                        group[setting] = self._values[key]
            for name, schedule in schedules.objects.items():
                setting = key.removeprefix(_key("scheduler", name) + ".")
                if setting != key and hasattr(schedule, setting) and setting != "class":
                    setattr(schedule, setting, self._values[key])


def _rescale(optimizer: torch.optim.Optimizer, number: int, old: float, new: float, schedules: Extra) -> None:
    group = optimizer.param_groups[number]
    group["lr"] = group["lr"] * (new / old) if old else new
    if "initial_lr" in group:
        group["initial_lr"] = new
    for schedule in schedules.objects.values():
        if getattr(schedule, "optimizer", None) is optimizer and len(getattr(schedule, "base_lrs", ())) > number:
            schedule.base_lrs[number] = new


def _key(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float, torch.Tensor)) else 0.0


def _plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else None
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else repr(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float, str)) for item in value):
        return list(value)
    if isinstance(value, dict) and all(isinstance(item, (bool, int, float, str)) for item in value.values()):
        return {str(k): v for k, v in sorted(value.items(), key=lambda pair: str(pair[0]))}
    return None
