"""The names of a model's leaves: parameters and buffers, each once, with a table of aliases for tied ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from stepfast.core.errors import UsageError
from stepfast.core.protocols import LiveLeaf
from stepfast.frameworks.torch.tensors import live_leaf

_WRAPPER_PREFIXES = ("_orig_mod.",)


@dataclass(slots=True, kw_only=True)
class ModelLeaves:
    """What a walk over the models found."""

    leaves: list[LiveLeaf] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    parameter_names: dict[int, str] = field(default_factory=dict)
    """id of each parameter -> its name without the leading `model.`"""


def as_named(value: object, kind: type, what: str) -> dict[str, object]:
    """One object or a dict of them, as a dict; the single one has the name ''."""
    if value is None:
        return {}
    if isinstance(value, kind):
        return {"": value}
    if isinstance(value, Mapping) and value and all(isinstance(v, kind) for v in value.values()):
        return {str(k): v for k, v in value.items()}
    raise UsageError(
        f"{what}= got {_type_names(value)}, not a {kind.__module__}.{kind.__qualname__} or a dict of them",
        hint=f"pass {what}=one object, or {what}={{'name': object, ...}}",
    )


def walk(models: Mapping[str, torch.nn.Module]) -> ModelLeaves:
    """All leaves of all models. Trainable parameters and persistent buffers go to the group `model`, frozen
    parameters to `frozen` (their file can stay a hard link), buffers the model does not save to `state`."""
    found = ModelLeaves()
    owners: dict[int, str] = {}
    memory: dict[tuple[object, ...], str] = {}
    for prefix, model in models.items():
        passing = _buffers_not_saved(model)
        for raw_name, tensor in _named(model):
            key = canonical(f"{prefix}.{raw_name}" if prefix else raw_name)
            name = f"model.{key}"
            live_leaf(tensor, name=name, key=key, group="")  # a sparse one has no place in memory: named, not a crash
            place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device)
            first = owners.get(id(tensor)) or (memory.get(place) if tensor.numel() else None)
            if isinstance(tensor, torch.nn.Parameter):
                found.parameter_names.setdefault(id(tensor), key)
            if first is not None:
                found.aliases[name] = first
                continue
            owners[id(tensor)] = memory[place] = name
            trainable = tensor.requires_grad or not isinstance(tensor, torch.nn.Parameter)
            group = "state" if raw_name in passing else "model" if trainable else "frozen"
            leaf_key = name if group == "state" else key
            found.leaves.append(live_leaf(tensor, name=name, key=leaf_key, group=group))
    return found


def canonical(name: str) -> str:
    """The name without what a compiler's wrapper put in front."""
    for prefix in _WRAPPER_PREFIXES:
        name = name.replace(prefix, "")
    return name


def _named(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _buffers_not_saved(model: torch.nn.Module) -> set[str]:
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
    }


def _type_names(value: object) -> str:
    if isinstance(value, Mapping):
        return "a dict of " + ", ".join(sorted({type(v).__name__ for v in value.values()}) or ["nothing"])
    return type(value).__name__
