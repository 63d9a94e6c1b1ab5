"""A model, an optimizer or other objects that do not fit the checkpoint: a named error, and nothing is loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stepfast.core.errors import StateMismatch, StateNotStorable, StepfastError
from tests.trainer import scene
from tests.trainer.conftest import Said
from tests.trainer.scene import Crash, Script, build, model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that died in step 4; each test here is refused and leaves it as it was."""
    path = tmp_path_factory.mktemp("started") / "run"
    scene.crash_at(path, 4)
    before = scene.files(path)
    yield path
    assert scene.files(path) == before


def refused(path: Path, script: Script, kind: type[StepfastError], **arguments: Any) -> StepfastError:
    """The error of a start, after showing that nothing was loaded into the script's objects."""
    weights = {name: scene.bits(tensor) for name, tensor in script.model.state_dict().items()}
    optimizer = copy.deepcopy(script.optimizer.state_dict())
    drawn = torch.get_rng_state()
    with pytest.raises(kind) as raised:
        script.run(path, **arguments)
    assert {name: scene.bits(tensor) for name, tensor in script.model.state_dict().items()} == weights
    assert script.optimizer.state_dict() == optimizer
    assert torch.equal(torch.get_rng_state(), drawn)
    assert raised.value.hint, "the next thing to do"
    return raised.value


def with_net(**changed: Any) -> Script:
    return build(net=lambda: model(**changed))


def tied() -> nn.Module:
    made = model(outer=nn.Linear(5, 5, bias=False), last=nn.Linear(5, 2))
    return made


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (
            lambda: model(more=nn.Linear(2, 2)),
            ["the script's model has model.more.weight, which the checkpoint has not", "1 more"],
        ),
        (lambda: model(outer=None), ["the checkpoint has model.outer.weight, which the script's model has not"]),
        (lambda: model(outer=None, outer2=nn.Linear(5, 2)), ["model.outer2.weight", "(it has model.outer.weight)"]),
        (lambda: model(outer=nn.Linear(5, 3)), ["model.outer.weight has shape [3, 5]; the checkpoint has [2, 5]"]),
        (lambda: model(outer=nn.Linear(5, 2).double()), ["model.outer.weight is F64; the checkpoint has F32"]),
        (
            lambda: model(norm=nn.BatchNorm1d(5, track_running_stats=False)),
            ["the checkpoint has model.norm.", "2 more like it"],
        ),
    ],
    ids=["missing", "extra", "renamed", "reshaped", "other dtype", "buffer gone"],
)
def test_leaves_that_do_not_fit(started: Path, net: Callable[[], nn.Module], words: list[str]) -> None:
    error = refused(started, build(net=net), StateMismatch)
    for word in words:
        assert word in error.message
    assert "STEPFAST_RESUME=fresh" in error.hint
    assert "stepfast.peek" in error.hint


def test_leaves_that_are_tied_in_the_script_only(tmp_path: Path) -> None:
    def two(tie: bool) -> Callable[[], nn.Module]:
        def net() -> nn.Module:
            made = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
            if tie:
                made[1].weight = made[0].weight
            return made

        return net

    script = build(net=two(True))
    run = script.run(tmp_path / "run")
    with pytest.raises(Crash):
        scene.crashing(run, script, 4)
    error = refused(tmp_path / "run", build(net=two(False)), StateMismatch)
    assert "model.1.weight" in error.message


def test_another_optimizer(started: Path) -> None:
    script = build()
    script.optimizer = torch.optim.AdamW(script.model.parameters(), lr=0.05)
    script.scheduler = torch.optim.lr_scheduler.ExponentialLR(script.optimizer, gamma=0.9)
    error = refused(started, script, StepfastError)
    assert "optimizer.class=SGD" in error.message
    assert "AdamW" in error.message
    assert "STEPFAST_CHANGE" not in error.hint, "no way on with moments of another optimizer"


def test_other_parameter_groups(started: Path) -> None:
    script = build()
    first, *rest = script.model.parameters()
    script.optimizer = torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=0.05, momentum=0.9)
    script.scheduler = torch.optim.lr_scheduler.ExponentialLR(script.optimizer, gamma=0.9)
    error = refused(started, script, StepfastError)
    assert "group" in error.message


def test_parameters_in_another_order(started: Path) -> None:
    script = build()
    script.optimizer = torch.optim.SGD(list(script.model.parameters())[::-1], lr=0.05, momentum=0.9)
    script.scheduler = torch.optim.lr_scheduler.ExponentialLR(script.optimizer, gamma=0.9)
    error = refused(started, script, StateMismatch)
    assert "optimizer, group 0, place 0: the checkpoint has inner.weight; the script has outer.bias" in error.message


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"scaler": torch.amp.GradScaler("cpu")}, "scaler= is one object; the checkpoint has not given"),
        ({"extra": {"noise": torch.Generator()}}, "extra= is {noise}; the checkpoint has not given"),
    ],
)
def test_objects_that_the_checkpoint_has_not(started: Path, changed: dict[str, Any], words: str) -> None:
    assert words in refused(started, build(), StateMismatch, **changed).message


def test_schedule_that_is_not_given_any_more(started: Path) -> None:
    error = refused(started, build(), StepfastError, scheduler=None)
    assert "scheduler" in error.message
    assert "ExponentialLR" in error.message


def test_another_model_class(started: Path) -> None:
    class Other(nn.Sequential):
        pass

    error = refused(started, build(net=lambda: Other(*model())), StepfastError)
    assert "model.class=Sequential" in error.message
    assert "Other" in error.message


def test_the_honest_script_still_goes_on(started: Path, tmp_path: Path, undisturbed: Callable[..., Any]) -> None:
    import shutil

    shutil.copytree(started, tmp_path / "run")
    assert scene.finish(tmp_path / "run") == undisturbed()


# ------------------------------------------------------------------ state that cannot be stored


class Cache:
    pass


def test_object_in_run_state_is_named_by_its_path(tmp_path: Path, said: Said) -> None:
    script = build()
    run = script.run(tmp_path / "run")

    def loop() -> None:
        for epoch in run.epochs():
            for batch in epoch:
                scene.do_step(run, script, batch)
                if run.step == 4:
                    run.state["items"] = [1, 2, {"cache": Cache()}]

    with pytest.raises(StateNotStorable) as raised:
        loop()
    assert "run.state.items[2].cache is a" in raised.value.message
    assert "Cache, which cannot be stored" in raised.value.message
    assert "extra=" in raised.value.hint
    said.one("left by an exception", "step 3 is durable")


def test_object_in_run_state_before_the_loop(tmp_path: Path) -> None:
    script = build()
    run = script.run(tmp_path / "run")
    run.state["open"] = Cache()
    with pytest.raises(StateNotStorable, match=r"run\.state\.open is a"):
        scene.train(run, script)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: torch.nn.functional.relu, "run.state.value is a builtins.function"),
        (lambda: torch.ones(2, requires_grad=True) * 2, "run.state.value is a tensor that still belongs to a graph"),
        (lambda: torch.eye(2).to_sparse(), "run.state.value is a sparse_coo tensor"),
        (lambda: torch.empty(2, device="meta"), "run.state.value is on the meta device"),
        (lambda: _loop_in_itself(), "nested more than"),
    ],
    ids=["function", "graph", "sparse", "meta", "contains itself"],
)
def test_values_that_cannot_be_stored(tmp_path: Path, value: Callable[[], object], words: str) -> None:
    script = build()
    run = script.run(tmp_path / "run")
    run.state["value"] = value()
    with pytest.raises(StateNotStorable) as raised:
        scene.train(run, script)
    assert words in raised.value.message
    assert raised.value.hint


def _loop_in_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def test_object_in_the_state_dict_of_extra(tmp_path: Path) -> None:
    class Stateful:
        def state_dict(self) -> dict[str, Any]:
            return {"inner": [Cache()]}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    script = build()
    run = script.run(tmp_path / "run", extra={"ema": Stateful()})
    with pytest.raises(StateNotStorable, match=r"extra\.ema\.inner\[0\] is a"):
        scene.train(run, script)


def test_private_key_of_a_group_that_cannot_be_stored(tmp_path: Path) -> None:
    script = build()
    script.optimizer.param_groups[0]["mine"] = {"cache": Cache()}
    run = script.run(tmp_path / "run")
    with pytest.raises(StateNotStorable, match=r"optimizer\.group0\.mine\.cache is a"):
        scene.train(run, script)


def test_sparse_leaf_is_named(tmp_path: Path) -> None:
    script = build()
    script.model.register_buffer("mask", torch.eye(3).to_sparse())
    with pytest.raises(StateNotStorable, match=r"model\.mask is a sparse_coo tensor"):
        scene.train(script.run(tmp_path / "run"), script)
