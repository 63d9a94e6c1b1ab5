"""The settings of a run as values: what is checked in one place and travels as an argument."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from stepfast.core.errors import UsageError
from stepfast.policy.retention import Retention
from stepfast.policy.triggers import Trigger

RESUME_MODES = ("auto", "require", "fresh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings that few runs need.

    `save`: when to save (default: every 600 s, at epoch ends, on signals, exceptions and requests).
    `keep`: which checkpoints stay (default: the newest 3 and all tagged).
    `hyperparameters`: values of your own that are recorded and compared at the next start.
    `deterministic`: switch the framework's deterministic kernels on.
    """

    save: Trigger | None = None
    keep: Retention = field(default_factory=Retention)
    hyperparameters: Mapping[str, object] = field(default_factory=dict)
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.save is not None and not isinstance(self.save, Trigger):
            raise UsageError(
                f"Options(save={self.save!r}) is not a trigger", hint="Options(save=Every(steps=500) | EpochEnd())"
            )
        if not isinstance(self.keep, Retention):
            raise UsageError(
                f"Options(keep={self.keep!r}) is not a Retention", hint="Options(keep=Retention(newest=5))"
            )
        if not isinstance(self.hyperparameters, Mapping) or not all(type(key) is str for key in self.hyperparameters):
            raise UsageError(
                f"Options(hyperparameters={self.hyperparameters!r}) is not a dict of values by name",
                hint='Options(hyperparameters={"width": 64})',
            )
        for key, value in self.hyperparameters.items():
            _check_plain(value, f"hyperparameters.{key}")
            _check_plain(key, f"hyperparameters.{key} (the name)")


def check_arguments(*, save_steps: object, seed: object, on_log: object, change: object, options: object) -> None:
    """Of Run's arguments those that nothing else looks at before they are used."""
    for name, value, example in (("save_steps", save_steps, 500), ("seed", seed, 1)):
        if value is not None and (type(value) is not int or value < 0):
            raise UsageError(f"{name}={value!r}: a whole number from 0 is needed", hint=f"{name}={example}")
    if on_log is not None and not callable(on_log):
        raise UsageError(f"on_log={on_log!r} cannot be called", hint="on_log=wandb.log, or a function (values, step)")
    if isinstance(change, str) or not isinstance(change, (tuple, list, set, frozenset)):
        raise UsageError(f"change={change!r} is not a tuple of names", hint='change=("optimizer.lr",)')
    if options is not None and not isinstance(options, Options):
        raise UsageError(f"options={options!r} is not an Options", hint="options=stepfast.Options(deterministic=True)")


def is_path(value: object) -> bool:
    if not isinstance(value, (str, PurePath)):
        return False
    text = str(value)
    return bool(text) and "\0" not in text and all(len(os.fsencode(part)) <= 255 for part in PurePath(text).parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long the run is: in epochs, in steps, or whichever ends first."""

    epochs: int | None
    steps: int | None
    accumulate: int

    def __post_init__(self) -> None:
        if self.epochs is None and self.steps is None:
            raise UsageError(
                "neither epochs= nor steps= was given", hint="say how long to train: epochs=3 or steps=10_000"
            )
        for name, value, least in (
            ("epochs", self.epochs, 0),
            ("steps", self.steps, 0),
            ("accumulate", self.accumulate, 1),
        ):
            if value is not None and (type(value) is not int or value < least):
                raise UsageError(
                    f"{name}={value!r}: a whole number from {least} is needed", hint=f"{name}={max(least, 3)}"
                )


def _check_plain(value: object, path: str) -> None:
    """What strict JSON can hold, and nothing that it would change."""
    if isinstance(value, str):
        is_plain = value.isprintable() or not any(0xD800 <= ord(letter) <= 0xDFFF for letter in value)
    elif isinstance(value, float):
        is_plain = math.isfinite(value)
    else:
        is_plain = value is None or (isinstance(value, int) and -(2**63) <= value < 2**63)
    if isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check_plain(item, f"{path}[{number}]")
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            _check_plain(key, f"{path}.{key!a}")
            _check_plain(item, f"{path}.{key}")
    elif not is_plain:
        raise UsageError(
            f"{ascii(path)[1:-1]} is {value!a}, which cannot be recorded",
            hint="finite numbers, texts, and lists and dicts of them can; write others as text",
        )
