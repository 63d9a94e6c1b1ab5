"""`stepfast ls`: the checkpoints of a run, or the runs below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepfast.cli.output import put_json, put_table, talk
from stepfast.cli.places import Row, age_of, holder_of, open_run, rows_of, shown_place, size_on_disk
from stepfast.core.errors import NotARun, StepfastError
from stepfast.report import lines
from stepfast.report.plain import escaped, table
from stepfast.store.run_directory import RunDirectory

MAX_FOLDERS = 20_000
_DEPTH = 8


def ls(place: str, *, as_json: bool) -> int:
    """A run's checkpoints if the place is a run, else the runs below it."""
    if RunDirectory.is_run(place):
        return _checkpoints(open_run(place), as_json)
    if not os.path.isdir(place):
        open_run(place)  # says what is wrong with it
        raise NotARun(f"{place} is not a directory")
    return _runs(Path(place), as_json)


def _checkpoints(run: RunDirectory, as_json: bool) -> int:
    rows = rows_of(run)
    if as_json:
        put_json({"run": str(run.path), "run_id": run.run_id, "checkpoints": [_row_json(row) for row in rows]})
        return 0
    whole = [row for row in rows if row.problem is None]
    if whole:
        header = ("step", "epoch", "next batch", "reason", "age", "size", "tag")
        put_table(table(header, [_cells(row) for row in whole], right=frozenset((0, 1, 2, 5))))
        talk(
            f"{lines.counted(len(whole), 'checkpoint')}, {lines.size(size_on_disk(run, whole))} on the disk in "
            f"{escaped(run.path)}"
        )
    elif not rows:
        talk(f"no checkpoint yet in {escaped(run.path)}")
    for row in rows:
        if row.problem is not None:
            talk(f"damaged, not listed: step {lines.count(row.step)}: {escaped(row.problem)}", style="red")
    return 0


def _cells(row: Row) -> tuple[str, ...]:
    manifest = row.manifest
    assert manifest is not None, "a whole checkpoint has a manifest"
    return (
        lines.count(row.step),
        *shown_place(manifest),
        ", ".join(manifest.reasons) or "–",
        lines.age(age_of(manifest.created)),
        lines.size(manifest.size_bytes),
        ", ".join(row.tags),
    )


def _row_json(row: Row) -> dict[str, Any]:
    manifest = row.manifest
    found: dict[str, Any] = {"step": row.step, "tags": row.tags, "problem": row.problem}
    if manifest is not None:
        found |= {
            "epoch": manifest.epoch,
            "batch": manifest.batch,
            "reasons": manifest.reasons,
            "created": manifest.created,
            "age_s": round(age_of(manifest.created), 3),
            "size_bytes": manifest.size_bytes,
            "finished": manifest.finished,
        }
    return found


def _runs(folder: Path, as_json: bool) -> int:
    found: list[dict[str, Any]] = []
    for path in _find_runs(folder):
        found.append(_run_facts(path))
    if as_json:
        put_json({"folder": str(folder.absolute()), "runs": found})
        return 0
    if not found:
        talk(f"no run below {escaped(folder.absolute())}")
        return 0
    rows = [
        (
            os.path.relpath(one["path"], folder.absolute()),
            "–" if one["step"] is None else lines.count(one["step"]),
            one["state"],
            "–" if one["num_checkpoints"] is None else lines.count(one["num_checkpoints"]),
            "–" if one["age_s"] is None else lines.age(one["age_s"]),
        )
        for one in found
    ]
    put_table(table(("run", "step", "state", "checkpoints", "age"), rows, right=frozenset((1, 3))))
    for one in found:
        if one["problem"] is not None:
            talk(f"{escaped(one['path'])}: {escaped(one['problem'])}", style="red")
    return 0


def _run_facts(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = dict.fromkeys(("step", "age_s", "num_checkpoints", "problem"))
    facts |= {"path": str(path.absolute()), "state": "damaged"}
    try:
        run = RunDirectory.open(path)
        steps = run.steps()
        facts["num_checkpoints"] = len(steps)
        holder = holder_of(run)
        finished = None
        if steps:
            facts["step"] = steps[-1]
            manifest = run.manifest(steps[-1])
            facts["age_s"] = round(age_of(manifest.created), 3)
            finished = manifest.finished
    except (StepfastError, PermissionError) as error:
        facts["problem"] = error.message if isinstance(error, StepfastError) else str(error)
        return facts
    facts["state"] = "training" if holder else "finished" if finished is not None else "stopped"
    return facts


def _find_runs(folder: Path) -> Iterator[Path]:
    """Runs below a folder, by name. Links are not followed, hidden folders and the insides of runs not entered."""
    num_seen = 0
    top = len(folder.parts)
    for where, names, _ in os.walk(folder, followlinks=False):
        path = Path(where)
        num_seen += 1
        if num_seen > MAX_FOLDERS:
            talk(f"more than {lines.count(MAX_FOLDERS)} folders; the search ended there. Name a smaller one")
            return
        if RunDirectory.is_run(path):
            names.clear()
            yield path
            continue
        names[:] = sorted(n for n in names if not n.startswith(".")) if len(path.parts) - top < _DEPTH else []
