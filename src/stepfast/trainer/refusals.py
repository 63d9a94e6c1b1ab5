"""A refusal from the agent as the error of ours that it stands for."""

from __future__ import annotations

from stepfast.core import errors
from stepfast.wire.messages import Failed, Refused

_BY_CODE = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.StepfastError)
}


def as_error(refused: Refused | Failed) -> errors.StepfastError:
    kind = _BY_CODE.get(refused.code, errors.StepfastError)
    return kind(refused.message, hint=refused.hint)
