"""A toy store, to try the harness on: three checkpoints, a ref, one prune, in the product's write order.

    toy.py DIRECTORY [BUG]

`BUG` plants one mistake; the harness must find each. Standard library only: a trace starts in no time.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

BUGS = (
    "no-data-fsync",
    "no-manifest-fsync",
    "no-staging-fsync",
    "no-parent-fsync",
    "no-first-fsync",
    "acknowledged-early",
    "manifest-first",
    "ref-in-place",
    "delete-in-place",
)


def sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def write(path: str, data: bytes, *, sync: bool = True) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for begin in range(0, len(data), 2048):
        os.write(descriptor, data[begin : begin + 2048])
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)


def say(line: str) -> None:
    print(line, flush=True)


def commit(root: str, step: int, bug: str) -> None:
    home = f"{root}/checkpoints"
    staging, final = f"{home}/.staging-{step}", f"{home}/step-{step}"
    model = hashlib.shake_128(b"model %d" % step).digest(5000)
    body = json.dumps({"step": step, "model": hashlib.sha256(model).hexdigest()})
    manifest = json.dumps({"body": body, "digest": hashlib.sha256(body.encode()).hexdigest()}).encode()
    os.mkdir(staging)
    if bug == "manifest-first":
        os.rename(staging, final)
        staging = final
        write(f"{staging}/manifest", manifest)
    write(f"{staging}/model", model, sync=bug != "no-data-fsync")
    if bug != "manifest-first":
        write(f"{staging}/manifest", manifest, sync=bug != "no-manifest-fsync")
    if bug != "no-staging-fsync":
        sync_folder(staging)
    if bug == "acknowledged-early":
        say(f"ACK commit {step}")
    if bug != "manifest-first":
        os.rename(staging, final)
    if bug != "no-parent-fsync":
        sync_folder(home)
    latest = f"{root}/refs/latest"
    if bug == "ref-in-place":
        write(latest, b"step-%d" % step)
    else:
        write(f"{latest}.new", b"step-%d" % step)
        os.rename(f"{latest}.new", latest)
    sync_folder(f"{root}/refs")
    say(f"ACK commit {step}")


def prune(root: str, step: int, bug: str) -> None:
    say(f"ACK prune {step}")  # from here on it may be missing
    home = f"{root}/checkpoints"
    doomed = f"{home}/step-{step}"
    if bug != "delete-in-place":
        os.rename(doomed, f"{home}/.trash-{step}")
        doomed = f"{home}/.trash-{step}"
        sync_folder(home)
    for name in ("manifest", "model"):
        os.unlink(f"{doomed}/{name}")
    os.rmdir(doomed)


def main(root: str, bug: str) -> None:
    for name in ("checkpoints", "refs"):
        os.mkdir(f"{root}/{name}")
    if bug != "no-first-fsync":
        sync_folder(root)
    for step in (1, 2, 3):
        commit(root, step, bug)
    prune(root, 1, bug)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "none")
