"""The one tree of errors. Each has a code, an exit status and, where there is one, the next thing to do."""

from __future__ import annotations


class StepfastError(Exception):
    """Base of every error a user can meet.

    `message` names the file, step or setting; `hint` is the next thing to do.
    """

    code = "failed"
    exit_status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


class UsageError(StepfastError):
    """A call or a setting that cannot mean anything. Nothing was touched."""

    code = "usage"
    exit_status = 2


class SettingChanged(StepfastError):
    """A setting differs from the one the run was started with. Nothing was loaded."""

    code = "setting-changed"


class StateMismatch(StepfastError):
    """The checkpoint's leaves and the script's do not fit. Nothing was loaded."""

    code = "state-mismatch"


class StateNotStorable(StepfastError):
    """A value in the train state has a type the codec does not know; the path to it is named."""

    code = "state-not-storable"


class NotARun(StepfastError):
    """The path is not a run directory, or cannot be one."""

    code = "not-a-run"


class FormatTooNew(StepfastError):
    """Written by a newer format than this program reads. Nothing was touched."""

    code = "format-too-new"


class RunHeld(StepfastError):
    """Another process is training in this run."""

    code = "run-held"


class NoCheckpoint(StepfastError):
    """No checkpoint fits what was asked for."""

    code = "no-checkpoint"


class Damaged(StepfastError):
    """A file of the run is not what its digest or its format says. It was not loaded."""

    code = "damaged"


class StorageFailed(StepfastError):
    """The disk refused (full, I/O error, read-only). What was committed before is intact."""

    code = "storage-failed"


class AgentLost(StepfastError):
    """The agent died or did not answer before its deadline."""

    code = "agent-lost"
