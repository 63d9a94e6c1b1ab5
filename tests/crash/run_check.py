"""What must hold of a run in any crash state, as the product's own readers see it, and that it can go on from there.

The promises, one line each, as the writers print them:
    made              the run opens
    saved STEP [REV]  the checkpoint is listed, whole, and at least this revision; refs and ledger know it
    found STEP        a new writer saw it listed and goes on from there: it stays, with or without refs
    doomed STEP       the checkpoint may be missing from here on
    tag NAME STEP     the tag names the step
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from stepfast.core.errors import Damaged, NoCheckpoint, StepfastError
from stepfast.store import ledger
from stepfast.store.reading import CheckpointReader
from stepfast.store.run_directory import RunDirectory
from stepfast.store.staging import clean_leftovers
from tests.crash.explore import Harm
from tests.crash.snapshots import make_run, save

RUN = "runs/gpt"
"""Below the traced directory, so that the making of both is part of the trace."""


def check(where: Path, promises: tuple[str, ...]) -> Harm | None:
    """An error that the product names is a finding; any other exception is one of the product's own bugs."""
    try:
        harm = go_on(where, promises)
    except StepfastError as error:
        harm = Harm(kind="broken", what=f"it does not go on: {error.message}")
    return harm and replace(harm, what=harm.what.replace(f"{where}/", ""))


def go_on(where: Path, promises: tuple[str, ...]) -> Harm | None:
    said = [promise.split() for promise in promises]
    path = where / RUN
    if not RunDirectory.is_run(path):
        if said:
            return Harm(kind="lost", what="the run is gone")
        run = make_run(path)  # where making one was interrupted, a new start must succeed
        save(run, 1)
        return None if run.steps() == [1] else Harm(kind="broken", what="the run made again does not save")
    run = RunDirectory.open(path)
    if said and (path / ".gitignore").read_bytes() != b"*\n":
        return Harm(kind="lost", what=".gitignore is gone or empty")
    if (harm := look(run, said)) is not None:
        return harm
    before = run.steps()
    clean_leftovers(run)
    if run.steps() != before:
        return Harm(kind="lost", what=f"cleaning up made {run.steps()} of {before}")
    following = max(before, default=0) + 1
    save(run, following, incarnation="9-9")
    if run.steps() != [*before, following]:
        return Harm(kind="broken", what=f"after a save of step {following} there is {run.steps()}")
    if (harm := look(run, said)) is not None:
        return harm
    left = [item.name for item in run.checkpoints_path.iterdir() if item.name.startswith(".")]
    return Harm(kind="broken", what=f"left behind: {left}") if left else None


def look(run: RunDirectory, said: list[list[str]]) -> Harm | None:
    revisions = {}
    for step in run.steps():
        try:
            reader = CheckpointReader(run, step)
            problems = [str(problem) for problem in reader.verify()]
            loop = reader.loop()
        except (Damaged, NoCheckpoint) as error:
            return Harm(kind="half", what=f"step {step} is listed: {error.message}")
        if problems:
            return Harm(kind="half", what=f"step {step} is listed: {problems[0]}")
        revisions[step] = reader.manifest.revision
        if loop != {"step": step, "revision": reader.manifest.revision}:
            return Harm(kind="broken", what=f"step {step} holds another loop.json: {loop}")
    saved = {int(rest[0]): int(rest[1]) if len(rest) > 1 else 0 for what, *rest in said if what == "saved"}
    found = {int(rest[0]): 0 for what, *rest in said if what == "found"}
    doomed = {int(rest[0]) for what, *rest in said if what == "doomed"}
    for step, revision in (found | saved).items():
        if step in doomed:
            continue
        if step not in revisions:
            return Harm(kind="lost", what=f"acknowledged step {step} is gone, there are {run.steps()}")
        if revisions[step] < revision:
            return Harm(kind="lost", what=f"step {step} went back to revision {revisions[step]}")
    return names(run, said, saved)


def names(run: RunDirectory, said: list[list[str]], saved: dict[int, int]) -> Harm | None:
    latest, tags = run.latest_ref(), run.tags()
    events, _ = ledger.read(run.ledger_path)
    if saved and (latest is None or latest[0] < max(saved)):
        return Harm(kind="lost", what=f"refs/latest is {latest}, acknowledged was {max(saved)}")
    if latest is not None and latest[0] not in run.steps():
        return Harm(kind="broken", what=f"refs/latest names {latest[0]}, there are {run.steps()}")
    for name, step in tags.items():
        if step not in run.steps():
            return Harm(kind="broken", what=f"the tag {name} names {step}, there are {run.steps()}")
    for what, *rest in said:
        if what == "tag" and tags.get(rest[0]) != int(rest[1]):
            return Harm(kind="lost", what=f"the tag {rest[0]} of step {rest[1]} is gone")
        if what == "saved" and int(rest[0]) in run.steps():
            digest = run.manifest_sha256(int(rest[0]))
            refs = [json.loads(file.read_bytes()) for file in (run.path / "refs").rglob("[a-z]*") if file.is_file()]
            if any(ref["step"] == int(rest[0]) and ref["manifest_sha256"] != digest for ref in refs):
                return Harm(kind="lost", what=f"a ref of step {rest[0]} names another manifest")
    lines = {(event.get("step"), event.get("revision")) for event in events}
    if missing := [step for step, revision in saved.items() if (step, revision) not in lines]:
        return Harm(kind="lost", what=f"the ledger's lines of steps {missing} are gone")
    return None
