"""Runs on a disk that is read-only or full, in a forked child that mounts it for itself alone.

`main` is started by the fork server; what is printed last is a JSON object for the test.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import stepfast
from stepfast.core.errors import StepfastError

CANNOT = 77
_NEW_NAMESPACE, _NEW_USER = 0x00020000, 0x10000000
_READ_ONLY, _REMOUNT, _PRIVATE = 1, 32, (1 << 18) | 16384
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    folder = Path(sys.argv[1])
    report = {}
    try:
        _own_namespace()
        for scenario in (read_only, full_at_start, full_while_saving, full_to_the_end):
            disk = folder / scenario.__name__
            disk.mkdir()
            _mount(disk, size="24m")
            report[scenario.__name__] = scenario
    except OSError as error:
        print(error)
        sys.exit(CANNOT)
    print(json.dumps({name: scenario(folder / name) for name, scenario in report.items()}))


def read_only(disk: Path) -> dict[str, Any]:
    _call(_libc.mount(b"none", os.fsencode(disk), None, _REMOUNT | _READ_ONLY, None))
    return _refusal(disk)


def full_at_start(disk: Path) -> dict[str, Any]:
    _fill(disk)
    return _refusal(disk)


def full_while_saving(disk: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    path = disk / "run"

    def watch(run: stepfast.Run) -> None:
        assert run._keep is not None
        if run.step in (4, 7):
            run._keep.wait_durable()
        if run.step == 4:  # saved at 3, due next at 6
            found["checkpoints_before"] = _steps(path)
            _fill(disk)
        if run.step == 7:
            found["checkpoints_while_full"] = _steps(path)
            (disk / "ballast").unlink()

    heard = _Heard()
    logging.getLogger("stepfast").addHandler(heard)
    ended = _train(path, watch)
    logging.getLogger("stepfast").removeHandler(heard)
    found |= {"said": heard.lines, "is_exact": ended == _train(None), "num_losses": len(ended) - 1}
    found["newest"] = max(_steps(path))
    return found


def full_to_the_end(disk: Path) -> dict[str, Any]:
    path = disk / "run"

    def watch(run: stepfast.Run) -> None:
        assert run._keep is not None
        if run.step == 4:
            run._keep.wait_durable()
            _fill(disk)

    found = _error_of(lambda: _train(path, watch))
    (disk / "ballast").unlink()
    found["resumed_at"] = []
    ended = _train(path, lambda run: found["resumed_at"].append(run.step))
    found["is_exact"] = ended == _train(None)
    return found


def _train(path: Path | None, watch: Callable[[stepfast.Run], object] = lambda run: None) -> list[str]:
    """Ten steps by hand: importing what torch's optimizers need takes a forked child several seconds."""
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 1)
    run = stepfast.Run(path, model=model, steps=10, save_steps=3)
    for _ in run:
        watch(run)
        loss = model(torch.randn(4, 3)).square().mean()
        gradients = torch.autograd.grad(loss, [model.weight, model.bias])
        with torch.no_grad():
            for parameter, gradient in zip((model.weight, model.bias), gradients, strict=True):
                parameter.sub_(0.1 * gradient)
        run.log(loss=loss)
    weights = [value.hex() for value in (*model.weight.detach().flatten().tolist(), *model.bias.detach().tolist())]
    return [" ".join(weights), *(value.hex() for value in run.history["loss"])]


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger("stepfast").setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _refusal(disk: Path) -> dict[str, Any]:
    return _error_of(lambda: _train(disk / "run"))


def _error_of(call: Any) -> dict[str, Any]:
    try:
        call()
    except StepfastError as error:
        return {"code": error.code, "message": error.message, "hint": error.hint}
    return {"code": None, "message": "", "hint": ""}


def _steps(path: Path) -> list[int]:
    return sorted(int(entry.name.removeprefix("step-")) for entry in (path / "checkpoints").glob("step-*"))


def _fill(disk: Path) -> None:
    with open(disk / "ballast", "wb", buffering=0) as ballast:
        size = 1 << 20
        while size:
            try:
                ballast.write(bytes(size))
            except OSError:
                size //= 2


def _own_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _call(_libc.unshare(_NEW_NAMESPACE))
    else:
        _call(_libc.unshare(_NEW_NAMESPACE | _NEW_USER))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _call(_libc.mount(b"none", b"/", None, _PRIVATE, None))


def _mount(disk: Path, *, size: str) -> None:
    _call(_libc.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", 0, f"size={size}".encode()))


def _call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
