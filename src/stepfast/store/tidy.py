"""Deleting checkpoints by a plan: renamed first, so that no half deleted one is ever listed.

Not here: which ones (`policy.retention`).
"""

from __future__ import annotations

from stepfast.core.errors import UsageError
from stepfast.core.points import point
from stepfast.files import durable
from stepfast.files.disk_errors import storage_failed
from stepfast.policy.retention import Plan
from stepfast.store import names
from stepfast.store.run_directory import RunDirectory
from stepfast.store.staging import TRASH, free_name


def apply_plan(run: RunDirectory, plan: Plan) -> list[int]:
    """Delete what the plan says; returns the steps that are gone. What got a tag meanwhile stays.

    Raises:
        UsageError: the plan leaves nothing.
        StorageFailed: the disk refused; each checkpoint is there as a whole or not at all.
    """
    tagged = set(run.tags().values())
    present = run.steps()
    steps = [step for step in plan.delete if step in present and (step in plan.keep or step not in tagged)]
    if not steps:
        return []
    if set(steps) >= set(present):
        raise UsageError(f"this would delete every checkpoint of {run.path}")
    checkpoints = run.checkpoints_path
    try:
        trash = []
        for step in steps:
            target = free_name(checkpoints, TRASH + names.step_directory(step))
            durable.rename_noreplace(run.checkpoint_path(step), target)
            trash.append(target)
        point("tidy:renamed")
        durable.fsync_dir(checkpoints)
        point("tidy:synced")
        for target in trash:
            durable.delete_tree(target)
    except OSError as error:
        raise storage_failed(error, "delete checkpoints in", checkpoints) from error
    return steps
