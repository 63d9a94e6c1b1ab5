"""PyTorch behind `core.protocols.Framework`: collect the train state, and put one back."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stepfast.core import codec
from stepfast.core.errors import StateMismatch, UsageError
from stepfast.core.protocols import LiveLeaf, TrainState
from stepfast.core.words import Leaf
from stepfast.frameworks.torch import optimizer as optimizers
from stepfast.frameworks.torch import tensors
from stepfast.frameworks.torch.copier import Copier
from stepfast.frameworks.torch.extra import Extra
from stepfast.frameworks.torch.names import ModelLeaves, as_named, canonical, walk
from stepfast.frameworks.torch.settings import Constructed

COPIED_AT_BOUNDARY_BYTES = 4 << 20
MARKED_PARAMETERS = 32


@dataclass(slots=True, kw_only=True)
class _Static:
    """What stays while model and optimizer keep their tensors."""

    fingerprint: list[object]
    model: ModelLeaves
    modules: list[torch.nn.Module]
    module_names: list[str]
    parameters: list[torch.nn.Parameter]
    labels: dict[str, dict[int, str]]
    leaves: tuple[LiveLeaf, ...]
    buffers: tuple[LiveLeaf, ...]
    """Those that Forward may write, if they are small enough to be copied at every boundary."""
    pointers: list[int]
    marked: tensors.Marked
    marked_parameters: tensors.Marked
    """A few of them: an update writes all."""
    optimizer_states: dict[str, Any]
    """Encoded state of the optimizers that hold tensors only."""


class TorchFramework:
    """The objects that were handed to Run."""

    def __init__(
        self, *, model: object, optimizer: object, scheduler: object, scaler: object, extra: Mapping[str, object] | None
    ) -> None:
        self.models: dict[str, torch.nn.Module] = as_named(model, torch.nn.Module, "model")  # type: ignore[assignment]
        self.optimizers: dict[str, torch.optim.Optimizer] = as_named(optimizer, torch.optim.Optimizer, "optimizer")  # type: ignore[assignment]
        if not self.models:
            raise UsageError("model= is missing", hint="pass model=your_module, or model={'name': module, ...}")
        self._schedules = Extra("scheduler", scheduler)
        self._scalers = Extra("scaler", scaler)
        if extra is not None and not isinstance(extra, Mapping):
            raise UsageError(f"extra= got {type(extra).__name__}, not a dict", hint="extra={'name': object}")
        self._extra = Extra("extra", dict(extra) if extra else None)
        self._constructed = Constructed(self.models, self.optimizers, self._schedules)
        self._static: _Static | None = None
        self._changes: tuple[tuple[str, ...], Mapping[str, object]] = ((), {})
        self._asked = 0
        self._resumed: tuple[dict[str, Any], dict[str, torch.Tensor]] = ({}, {})
        self._loading: dict[str, torch.Tensor] = {}
        self._staged: dict[str, tuple[torch.Tensor, torch.Tensor, Leaf]] = {}

    # ------------------------------------------------------------------ collect
    def collect(self, user: Mapping[str, object]) -> TrainState:
        static = self._refresh()
        foreign = tensors.TorchForeign("state")
        trees: dict[str, Any] = {}
        for name, optimizer in self.optimizers.items():
            prefix = f"optimizer.{name}" if name else "optimizer"
            labels = static.labels[name]
            trees[name] = {
                "class": type(optimizer).__name__,
                "groups": optimizers.encode_groups(optimizer, prefix, labels, foreign),
                "state": static.optimizer_states.get(name)
                or optimizers.encode_state(optimizer, prefix, labels, foreign),
            }
        tree = {
            "models": _module_flags(static),
            "frozen": [static.model.parameter_names[id(p)] for p in static.parameters if not p.requires_grad],
            "gradients": self._gradients(static, foreign),
            "optimizers": trees,
            "schedulers": self._schedules.encode(foreign),
            "scalers": self._scalers.encode(foreign),
            "extra": self._extra.encode(foreign),
            "user": codec.encode(dict(user), "run", foreign),
        }
        return TrainState(
            static=static.leaves,
            dynamic=tuple(foreign.leaves),
            is_watched=foreign.is_watched and bool(self.optimizers),
            aliases=static.model.aliases,
            tree=tree,
        )

    def versions(self, state: TrainState) -> list[object]:
        static = self._static
        if static is None or state.static is not static.leaves:
            return [tensors.mark(leaf.tensor) for leaf in (*state.static, *state.dynamic)]
        return tensors.marks(static.marked) + [tensors.mark(leaf.tensor) for leaf in state.dynamic]

    def holds(self, leaves: Sequence[Leaf]) -> bool:
        state = self.collect({})
        live = {leaf.name: leaf.tensor for leaf in (*state.static, *state.dynamic)}
        theirs = {leaf.name: leaf.digest for leaf in leaves}
        for heading in ("model.", "optimizer.", "grad."):
            mine = {name for name in live if name.startswith(heading)}
            if mine != {name for name in theirs if name.startswith(heading)}:
                return False
            if any(tensors.digest(live[name]) != theirs[name] for name in mine):
                return False
        return True

    def parameter_versions(self) -> list[object]:
        if not self.optimizers:  # by hand: nothing says when an update is made
            self._asked += 1
            return [-self._asked]
        static = self._static or self._refresh()
        versions: list[object] = [parameter._version for parameter in static.parameters]
        return versions + tensors.marks(static.marked_parameters)

    def written_by_forward(self) -> dict[str, Any]:
        buffers = self._refresh().buffers if self._static is None else self._static.buffers
        return {leaf.name: leaf.tensor.detach().clone() for leaf in buffers}

    def copier(self, sources: Sequence[LiveLeaf], slot: memoryview, offsets: Sequence[int]) -> Copier:
        base = torch.frombuffer(slot, dtype=torch.uint8)
        views = [
            tensors.over_memory(base, leaf.dtype, leaf.shape, offset, tensors.stored_bytes(leaf))
            for leaf, offset in zip(sources, offsets, strict=True)
        ]
        return Copier(sources, views)

    # ------------------------------------------------------------------ restore
    def check_model(self, leaves: Sequence[Leaf], aliases: Mapping[str, str]) -> None:
        static = self._refresh()
        stored = {leaf.name: leaf for leaf in leaves if leaf.name.startswith("model.")}
        live = {leaf.name: leaf for leaf in static.model.leaves}
        _check_names(stored, live)
        for name, leaf in live.items():
            was = stored[name]
            if was.shape != leaf.shape:
                raise _mismatch(f"{name} has shape {list(leaf.shape)}; the checkpoint has {list(was.shape)}")
            if was.dtype != leaf.dtype:
                raise _mismatch(f"{name} is {leaf.dtype}; the checkpoint has {was.dtype}")
        tied = {name: of for name, of in aliases.items() if name.startswith("model.")}
        for name in sorted(tied.keys() ^ static.model.aliases.keys()):
            where = "the checkpoint" if name in tied else "the script"
            raise _mismatch(f"{name} is tied to {tied.get(name) or static.model.aliases[name]} in {where} only")

    def check(self, leaves: Sequence[Leaf], aliases: Mapping[str, str], tree: dict[str, Any]) -> None:
        self.check_model(leaves, aliases)
        static = self._refresh()
        for what, mine, theirs in (
            ("optimizer", set(self.optimizers), set(tree["optimizers"])),
            ("scheduler", self._schedules.names(), set(tree["schedulers"])),
            ("scaler", self._scalers.names(), set(tree["scalers"])),
            ("extra", self._extra.names(), set(tree["extra"])),
        ):
            if mine != theirs:
                raise _mismatch(f"{what}= is {_list(mine)}; the checkpoint has {_list(theirs)}")
        for name, optimizer in self.optimizers.items():
            what = f"optimizer {name}" if name else "optimizer"
            optimizers.check(optimizer, what, static.labels[name], tree["optimizers"][name])

    def destinations(self, leaves: Sequence[Leaf]) -> dict[str, memoryview]:
        live = {leaf.name: leaf.tensor for leaf in self._refresh().model.leaves}
        self._loading, self._staged = {}, {}
        found: dict[str, memoryview] = {}
        for leaf in leaves:
            target = live.get(leaf.name)
            if target is None:
                target = tensors.empty_like_stored(leaf.dtype, leaf.shape, leaf.strides)
                self._loading[leaf.name] = target
            direct = leaf.strides is None and target.is_contiguous() and target.device.type == "cpu"
            if direct and tuple(target.stride()) == tensors.row_major(leaf.shape):
                found[leaf.name] = tensors.byte_view(target)
                continue
            staging = tensors.empty_like_stored(leaf.dtype, leaf.shape, None)
            self._staged[leaf.name] = (target, staging, leaf)
            found[leaf.name] = tensors.byte_view(staging)
        return found

    def place(self) -> None:
        with torch.no_grad():
            for target, staging, leaf in self._staged.values():
                strides = leaf.strides or tensors.row_major(leaf.shape)
                if tuple(target.stride()) != strides:
                    target.data = tensors.empty_like_stored(leaf.dtype, leaf.shape, strides).to(target.device)
                tensors.copy_elements(target.detach(), staging)
        self._staged = {}

    def apply(self, tree: dict[str, Any]) -> dict[str, Any]:
        self.place()
        static = self._refresh()
        self._apply_gradients(static, tree["gradients"])
        for name, optimizer in self.optimizers.items():
            state = tree["optimizers"][name]["state"]
            optimizers.apply_state(optimizer, static.labels[name], state, tensors.TorchForeign("state", self._loading))
        self._resumed = (tree, {name: self._loading[name] for name in _tensors_of_settling(tree)})
        user = self._settle()
        self._loading = {}
        return user

    def settle(self) -> dict[str, Any]:
        user = self._settle()
        self._resumed = ({}, {})
        return user

    def _settle(self) -> dict[str, Any]:
        tree, kept = self._resumed
        # clones: what the script does to the first copy must not reach the second
        foreign = tensors.TorchForeign("state", {name: tensors.clone(tensor) for name, tensor in kept.items()})
        static = self._refresh()
        self._apply_modules(static, tree)
        for name, optimizer in self.optimizers.items():
            optimizers.apply_groups(optimizer, tree["optimizers"][name]["groups"], foreign)
        self._schedules.apply(tree["schedulers"], foreign)
        self._scalers.apply(tree["scalers"], foreign)
        self._extra.apply(tree["extra"], foreign)
        self._constructed.change(*self._changes, self.optimizers, self._schedules)
        user: dict[str, Any] = codec.decode(tree["user"], foreign)
        return user

    def settings(self) -> dict[str, object]:
        return self._constructed.settings()

    def change(self, keys: Sequence[str], old: Mapping[str, object]) -> None:
        self._changes = (tuple(keys), old)
        self._constructed.change(*self._changes, self.optimizers, self._schedules)

    # ------------------------------------------------------------------ inside
    def _refresh(self) -> _Static:
        """The static part; walked anew only when a tensor, a module or a place in memory has changed."""
        static = self._static
        if (
            static is not None
            and self._fingerprint(static) == static.fingerprint
            and [leaf.tensor.data_ptr() for leaf in static.leaves] == static.pointers
        ):
            return static
        found = walk(self.models)
        named = [pair for model in self.models.values() for pair in model.named_modules()]
        foreign = tensors.TorchForeign("optimizer")
        labels = {k: optimizers.parameter_labels(o, found.parameter_names) for k, o in self.optimizers.items()}
        states = {
            name: optimizers.encode_state(
                optimizer, f"optimizer.{name}" if name else "optimizer", labels[name], foreign
            )
            for name, optimizer in self.optimizers.items()
            if optimizers.holds_only_tensors(optimizer)
        }
        leaves = (*found.leaves, *foreign.leaves)
        parameters = [p for model in self.models.values() for p in model.parameters()]
        static = _Static(
            fingerprint=[],
            model=found,
            modules=[module for _, module in named],
            module_names=[
                canonical(f"{prefix}.{name}".strip("."))
                for prefix, model in self.models.items()
                for name, _ in model.named_modules()
            ],
            parameters=parameters,
            labels=labels,
            leaves=leaves,
            buffers=_small_buffers(found.leaves),
            pointers=[leaf.tensor.data_ptr() for leaf in leaves],
            marked=tensors.Marked.of([leaf.tensor for leaf in leaves]),
            marked_parameters=tensors.Marked.of(_spread(parameters, MARKED_PARAMETERS)),
            optimizer_states=states,
        )
        static.fingerprint = self._fingerprint(static)
        self._static = static
        return static

    def _fingerprint(self, static: _Static) -> list[object]:
        ids: list[object] = [p.requires_grad for p in static.parameters]
        for module in static.modules:
            ids += map(id, module._parameters.values())
            ids += map(id, module._buffers.values())
            ids += map(id, module._modules.values())
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                ids += map(id, group["params"])
            for owner, values in optimizer.state.items():
                ids.append(id(owner))
                ids += map(id, values.values()) if type(values) is dict else [id(values)]
        return ids

    def _gradients(self, static: _Static, foreign: tensors.TorchForeign) -> dict[str, str]:
        """Gradients that wait for an update; None stays None."""
        names: dict[str, str] = {}
        for parameter in static.parameters:
            if parameter.grad is not None:
                label = static.model.parameter_names[id(parameter)]
                names[label] = foreign.take(parameter.grad, f"grad.{label}")
        for labels, optimizer in zip(static.labels.values(), self.optimizers.values(), strict=True):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    outside = id(parameter) not in static.model.parameter_names
                    if outside and parameter.grad is not None:
                        label = labels[id(parameter)]
                        names[label] = foreign.take(parameter.grad, f"grad.{label}")
        return names

    def _apply_gradients(self, static: _Static, names: dict[str, str]) -> None:
        for parameter in static.parameters:
            leaf = names.get(static.model.parameter_names[id(parameter)])
            parameter.grad = None if leaf is None else self._loading[leaf].to(parameter.device)
        for labels, optimizer in zip(static.labels.values(), self.optimizers.values(), strict=True):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in static.model.parameter_names:
                        leaf = names.get(labels[id(parameter)])
                        parameter.grad = None if leaf is None else self._loading[leaf].to(parameter.device)

    def _apply_modules(self, static: _Static, tree: dict[str, Any]) -> None:
        flags = tree["models"]
        odd = set(flags["other"])
        for name, module in zip(static.module_names, static.modules, strict=True):
            module.training = flags["training"] != (name in odd)
        frozen = set(tree["frozen"])
        for parameter in static.parameters:
            if parameter.is_leaf:
                parameter.requires_grad_(static.model.parameter_names[id(parameter)] not in frozen)


def _tensors_of_settling(tree: dict[str, Any]) -> set[str]:
    """Names of the leaves that groups, schedules, scalers, extra and user state refer to."""
    groups = [optimizer["groups"] for optimizer in tree["optimizers"].values()]
    found: set[str] = set()
    waiting: list[Any] = [groups, tree["schedulers"], tree["scalers"], tree["extra"], tree["user"]]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if value.get("$") in ("tensor", "array"):
                found.add(value["v"])
            else:
                waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found


def _spread(parameters: Sequence[torch.nn.Parameter], count: int) -> list[torch.nn.Parameter]:
    return list(parameters[:: max(1, -(-len(parameters) // count))])


def _small_buffers(leaves: Sequence[LiveLeaf]) -> tuple[LiveLeaf, ...]:
    buffers = tuple(leaf for leaf in leaves if not isinstance(leaf.tensor, torch.nn.Parameter))
    return buffers if sum(leaf.tensor.nbytes for leaf in buffers) <= COPIED_AT_BOUNDARY_BYTES else ()


def _module_flags(static: _Static) -> dict[str, Any]:
    """`training` of every module: the first one's, and the names of those that differ."""
    first = static.modules[0].training
    other = [n for n, m in zip(static.module_names, static.modules, strict=True) if m.training != first]
    return {"training": first, "other": other}


def _check_names(stored: Mapping[str, Leaf], live: Mapping[str, LiveLeaf]) -> None:
    missing = [name for name in live if name not in stored]
    unknown = [name for name in stored if name not in live]
    if missing:
        close = difflib.get_close_matches(missing[0], unknown, n=1)
        also = f" (it has {close[0]})" if close else ""
        raise _mismatch(f"the script's model has {missing[0]}, which the checkpoint has not{also}", len(missing))
    if unknown:
        raise _mismatch(f"the checkpoint has {unknown[0]}, which the script's model has not", len(unknown))


def _mismatch(message: str, count: int = 1) -> StateMismatch:
    more = f"; {count - 1} more like it" if count > 1 else ""
    return StateMismatch(
        message + more,
        hint="build the model the run was started with (stepfast.peek(path) shows its leaves), "
        "or start over: STEPFAST_RESUME=fresh",
    )


def _list(names: set[str]) -> str:
    if not names:
        return "not given"
    return "one object" if names == {""} else "{" + ", ".join(sorted(names)) + "}"
