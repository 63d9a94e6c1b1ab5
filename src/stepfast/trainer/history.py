"""What was logged: the step in hand, the rows of all steps before it, and their segments for the checkpoint."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stepfast.core.errors import UsageError
from stepfast.store.metrics import SEGMENT_STEPS, segment_name

ROW = struct.Struct("<QIId")


class History:
    """Logged values by name and step. `history["loss"]` is the list of them; `steps("loss")` says at which steps."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._ids: dict[str, int] = {}
        self._segments: dict[int, bytearray] = {}

    def names(self) -> list[str]:
        return list(self._names)

    def __getitem__(self, name: str) -> list[float]:
        if name not in self._ids:
            known = ", ".join(self._names) or "nothing"
            raise KeyError(f"{name!r} was never logged; logged so far: {known}")
        return [value for _, _, number, value in self._rows() if number == self._ids[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __len__(self) -> int:
        return sum(len(segment) for segment in self._segments.values()) // ROW.size

    def steps(self, name: str) -> list[int]:
        number = self._ids.get(name)
        return [step for step, _, other, _ in self._rows() if other == number]

    def rows(self) -> Iterator[tuple[int, int, str, float]]:
        """(step, epoch, name, value), oldest first."""
        for step, epoch, number, value in self._rows():
            yield step, epoch, self._names[number], value

    def mean(self, name: str, epoch: int) -> float:
        """The mean of what was logged under `name` in one epoch. NaN when nothing was."""
        number = self._ids.get(name)
        values = [value for _, e, other, value in self._rows() if e == epoch and other == number]
        return math.fsum(values) / len(values) if values else math.nan

    def add(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        segment = self._segments.setdefault(step // SEGMENT_STEPS, bytearray())
        for name, value in values.items():
            if (number := self._ids.get(name)) is None:
                number = self._ids[name] = len(self._names)
                self._names.append(name)
            segment += ROW.pack(step, epoch, number, value)

    def files(self) -> dict[str, bytearray]:
        """The segments as they lie in a checkpoint, by file name."""
        return {segment_name(number): data for number, data in sorted(self._segments.items())}

    def is_full(self, file_name: str, step: int) -> bool:
        """Whether no row can be added to this segment any more once `step` steps are finished."""
        return int(file_name[8:16]) < step // SEGMENT_STEPS

    def load(self, names: list[str], segments: Mapping[str, bytes]) -> None:
        self._names = list(names)
        self._ids = {name: number for number, name in enumerate(names)}
        self._segments = {int(name[8:16]): bytearray(data) for name, data in segments.items()}

    def _rows(self) -> Iterator[tuple[int, int, int, float]]:
        for _, segment in sorted(self._segments.items()):
            yield from ROW.iter_unpack(segment)


class StepLog:
    """What was logged in the step in hand. A name logged several times in a step counts with its mean."""

    def __init__(self, scalar: Callable[[object], float | None]) -> None:
        self._scalar = scalar
        self._values: dict[str, list[float]] = {}

    def log(self, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            number = self._scalar(value)
            if number is None:
                raise UsageError(
                    f"run.log({name}=...) got {_described(value)}, which is not one number",
                    hint=f"log a number or a tensor with one element, such as {name}.mean()",
                )
            self._values.setdefault(name, []).append(number)

    def take(self) -> dict[str, float]:
        values = {
            name: found[0] if len(found) == 1 else math.fsum(found) / len(found) for name, found in self._values.items()
        }
        self._values = {}
        return values


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {list(shape)}" if shape is not None else "")
