"""Optimizers: their state tensor by tensor, their groups with every private key, all under the parameters' names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from stepfast.core import codec
from stepfast.core.errors import StateMismatch
from stepfast.frameworks.torch.tensors import TorchForeign


def parameter_labels(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[int, str]:
    """id of each parameter -> the model's name for it, or its place where the model does not know it."""
    labels: dict[int, str] = {}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            labels[id(parameter)] = names.get(id(parameter), f"group{number}.{place}")
    return labels


def holds_only_tensors(optimizer: torch.optim.Optimizer) -> bool:
    """Whether all state is plain dicts of tensors, one a parameter: then the tree changes only with the tensors."""
    return all(
        isinstance(owner, torch.Tensor)
        and type(values) is dict
        and all(isinstance(value, torch.Tensor) for value in values.values())
        for owner, values in optimizer.state.items()
    )


def encode_state(
    optimizer: torch.optim.Optimizer, prefix: str, labels: Mapping[int, str], foreign: TorchForeign
) -> list[Any]:
    """The state as pairs of owner and values; its tensors go to `foreign`."""
    state = []
    for owner, values in optimizer.state.items():
        if isinstance(owner, torch.Tensor):
            label = labels.get(id(owner))
            if label is None:  # state of a parameter that left all groups: no step can read it
                continue
            state.append([{"parameter": label}, codec.encode(values, f"{prefix}.{label}", foreign)])
        else:
            key = codec.encode(owner, f"{prefix} state key", foreign)
            state.append([{"key": key}, codec.encode(values, f"{prefix}.{owner}", foreign)])
    return state


def encode_groups(
    optimizer: torch.optim.Optimizer, prefix: str, labels: Mapping[int, str], foreign: TorchForeign
) -> list[Any]:
    """The groups with all their keys, private ones included."""
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        values = {key: value for key, value in group.items() if key != "params"}
        encoded = codec.encode(values, f"{prefix}.group{number}", foreign)
        groups.append({"params": [labels[id(p)] for p in group["params"]], "values": encoded})
    return groups


def check(optimizer: torch.optim.Optimizer, what: str, labels: Mapping[int, str], tree: dict[str, Any]) -> None:
    """Raise StateMismatch when the groups are not those of the checkpoint."""
    stored = [group["params"] for group in tree["groups"]]
    live = [[labels[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    if tree["class"] != type(optimizer).__name__:
        raise StateMismatch(
            f"{what} is {type(optimizer).__name__}; the checkpoint has the state of {tree['class']}",
            hint="use the optimizer the run was started with, or start over: STEPFAST_RESUME=fresh",
        )
    if stored == live:
        return
    if len(stored) != len(live):
        raise StateMismatch(
            f"{what} has {len(live)} parameter groups; the checkpoint has {len(stored)}",
            hint="build the same groups before Run, in the same order; stepfast.peek(path) shows what is stored",
        )
    for number, (was, now) in enumerate(zip(stored, live, strict=True)):
        for place in range(max(len(was), len(now))):
            old = was[place] if place < len(was) else "nothing"
            new = now[place] if place < len(now) else "nothing"
            if old != new:
                raise StateMismatch(
                    f"{what}, group {number}, place {place}: the checkpoint has {old}; the script has {new}",
                    hint="build the same groups before Run, in the same order; stepfast.peek(path) shows them",
                )


def apply_state(
    optimizer: torch.optim.Optimizer, labels: Mapping[int, str], state: list[Any], foreign: TorchForeign
) -> None:
    """Put stored state into `optimizer`. Tensors keep their stored dtype (`load_state_dict` would cast)."""
    owners = {labels[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    optimizer.state.clear()
    for owner, values in state:
        key = owners[owner["parameter"]] if "parameter" in owner else codec.decode(owner["key"], foreign)
        optimizer.state[key] = codec.decode(values, foreign)


def apply_groups(optimizer: torch.optim.Optimizer, groups: list[Any], foreign: TorchForeign) -> None:
    """Put stored values of the groups in place, private keys included; keys that were not there then go."""
    for group, stored in zip(optimizer.param_groups, groups, strict=True):
        parameters = group["params"]
        group.clear()
        group["params"] = parameters
        group.update(codec.decode(stored["values"], foreign))
