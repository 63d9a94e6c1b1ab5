"""Calls that cannot mean anything: a named error with the next thing to do, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import stepfast
from stepfast import EpochEnd, Every, On, Options, Retention
from stepfast.core.errors import NoCheckpoint, UsageError
from tests.trainer import scene
from tests.trainer.scene import build


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.ones(3))


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no length": ({"epochs": None}, "neither epochs= nor steps= was given", "epochs=3 or steps=10_000"),
    "no data, no steps": ({"data": None}, "steps= is needed when data=None", "steps="),
    "window of unknown length": (
        {"data": DataLoader(Endless()), "accumulate": 4},
        "accumulate= needs data with a length",
        "by hand",
    ),
    "epochs text": ({"epochs": "3"}, "epochs='3': a whole number from 0 is needed", "epochs=3"),
    "epochs negative": ({"epochs": -1}, "epochs=-1: a whole number from 0 is needed", "epochs=3"),
    "epochs true": ({"epochs": True}, "epochs=True", "epochs=3"),
    "steps float": ({"steps": 1e4}, "steps=10000.0: a whole number from 0 is needed", "steps=3"),
    "accumulate 0": ({"accumulate": 0}, "accumulate=0: a whole number from 1 is needed", "accumulate=3"),
    "model missing": ({"model": None}, "model= is a builtins.NoneType", "model=your_module"),
    "model class": ({"model": nn.Linear}, "model=", "model=your_module"),
    "model empty": ({"model": {}}, "model=", "model=your_module"),
    "model tensor": (
        {"model": torch.ones(2)},
        "model= got Tensor, not a torch.nn.modules.module.Module",
        "model=one object",
    ),
    "model text": ({"model": "net"}, "model= is a builtins.str, which is no torch.nn.Module", "model=your_module"),
    "optimizer text": ({"optimizer": "adam"}, "optimizer= got str", "optimizer=one object"),
    "optimizer list": ({"optimizer": [1]}, "optimizer= got list", "optimizer={'name': object, ...}"),
    "scheduler number": ({"scheduler": 3}, "scheduler is a int, which has no state_dict", "run.state"),
    "scaler text": ({"scaler": "auto"}, "scaler is a str", "run.state"),
    "extra without state": ({"extra": {"ema": 3}}, "extra.ema is a int, which has no state_dict", "run.state"),
    "extra is no dict": ({"extra": 3}, "extra=", "extra={'name': object}"),
    "data number": ({"data": 5}, "data= is a int, which cannot be iterated", "DataLoader"),
    "data iterator": ({"data": iter([1, 2])}, "an iterator that can be used once", "what it was made from"),
    "data generator": ({"data": (i for i in range(3))}, "data= is a generator, an iterator", "__iter__"),
    "save_steps text": ({"save_steps": "500"}, "save_steps='500': a whole number from 0 is needed", "save_steps=500"),
    "save_steps negative": ({"save_steps": -1}, "save_steps=-1", "save_steps=500"),
    "save_steps true": ({"save_steps": True}, "save_steps=True", "save_steps=500"),
    "seed text": ({"seed": "7"}, "seed='7': a whole number", "seed=1"),
    "seed negative": ({"seed": -1}, "seed=-1", "seed=1"),
    "resume unknown": ({"resume": "maybe"}, "resume='maybe': known are auto, require, fresh", "resume=auto"),
    "change is a text": ({"change": "optimizer.lr"}, "change='optimizer.lr'", 'change=("optimizer.lr",)'),
    "options dict": ({"options": {"save": 1}}, "options={'save': 1} is not an Options", "Options("),
    "on_log no function": ({"on_log": "wandb"}, "on_log='wandb' cannot be called", "on_log="),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("bare", [False, True], ids=["kept", "bare"])
def test_arguments(tmp_path: Path, name: str, bare: bool) -> None:
    arguments, words, next_thing = REFUSED[name]
    if "steps" in arguments or "epochs" not in arguments:
        arguments = {"epochs": 2} | arguments
    path = None if bare else tmp_path / "run"
    with pytest.raises(UsageError) as raised:
        build().run(path, **arguments)
    assert words in raised.value.message
    assert next_thing in raised.value.hint
    assert not (tmp_path / "run").exists()
    assert raised.value.exit_status == 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Every(), "Every() takes either steps= or seconds="),
        (lambda: Every(steps=1, seconds=1), "Every() takes either"),
        (lambda: Every(steps=0), "Every(steps=0)"),
        (lambda: Every(seconds=-1), "Every(seconds=-1)"),
        (lambda: On(), "known events are signal, exception, request"),
        (lambda: On("signals"), "On('signals')"),
        (lambda: Options(save=5), "Options(save=5) is not a trigger"),
        (lambda: Options(save="epoch"), "Options(save='epoch')"),
        (lambda: Options(keep=3), "Options(keep=3) is not a Retention"),
        (lambda: Options(hyperparameters=[1]), "Options(hyperparameters=[1])"),
        (lambda: Options(hyperparameters={"net": nn.Linear}), "hyperparameters.net is"),
        (lambda: Options(hyperparameters={"lr": float("nan")}), "hyperparameters.lr is nan"),
        (lambda: Retention(newest=0), "newest=0"),
    ],
)
def test_options(call: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        call()
    assert words in raised.value.message
    assert raised.value.hint


def test_trigger_with_something_else() -> None:
    with pytest.raises(TypeError):
        EpochEnd() | 5


def test_variables_are_checked_and_beat_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_RESUME", "never")
    with pytest.raises(UsageError) as raised:
        build().run(tmp_path / "run")
    assert "STEPFAST_RESUME='never': known are auto, require, fresh" in raised.value.message
    monkeypatch.setenv("STEPFAST_RESUME", "require")
    with pytest.raises(NoCheckpoint) as missing:
        build().run(tmp_path / "run", resume="fresh")
    assert str(tmp_path / "run") in missing.value.message
    assert missing.value.hint
    assert not (tmp_path / "run").exists()


def test_epochs_without_data() -> None:
    run = build().run(None, data=None, steps=3, epochs=None)
    with pytest.raises(UsageError) as raised:
        run.epochs()
    assert "for step in run" in raised.value.hint


def test_a_loop_is_walked_once() -> None:
    script = build()
    run = script.run(None)
    scene.train(run, script)
    with pytest.raises(UsageError, match="the loop of this Run was begun before"):
        list(run)


def test_an_epoch_is_walked_once() -> None:
    script = build()
    run = script.run(None)

    def twice() -> None:
        for epoch in run.epochs():
            for batch in epoch:
                scene.do_step(run, script, batch)
                break
            for _ in epoch:
                pass

    with pytest.raises(UsageError) as raised:
        twice()
    assert "the batches of epoch 1 were walked through before" in raised.value.message


def test_an_epoch_whose_turn_is_over() -> None:
    script = build()
    run = script.run(None)

    def stale() -> None:
        kept = None
        for epoch in run.epochs():
            kept = kept or epoch
            for _ in kept:
                pass

    with pytest.raises(UsageError, match="its turn is over"):
        stale()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2), "run.log(loss=...) got a Tensor of shape [2], which is not one number"),
        ("high", "run.log(loss=...) got a str"),
        (None, "run.log(loss=...) got a NoneType"),
        (1j, "run.log(loss=...) got a complex"),
    ],
)
def test_values_that_cannot_be_logged(value: object, words: str) -> None:
    run = build().run(None)
    batches = iter(run)
    next(batches)
    with pytest.raises(UsageError) as raised:
        run.log(loss=value)
    assert words in raised.value.message
    assert ".mean()" in raised.value.hint


@pytest.mark.parametrize("length", [3, 9])
@pytest.mark.parametrize("kept", [False, True])
def test_data_whose_length_is_a_lie(tmp_path: Path, length: int, kept: bool) -> None:
    class Lying:
        def __len__(self) -> int:
            return length

        def __iter__(self) -> Any:
            return iter(build().loader)

    script = build()
    run = script.run(tmp_path / "run" if kept else None, data=Lying())
    with pytest.raises(stepfast.StepfastError) as raised:
        scene.train(run, script)
    assert f"its length says {length} batches an epoch" in raised.value.message
    assert "__len__" in raised.value.hint


def test_data_without_length_has_no_len() -> None:
    run = build().run(None, data=DataLoader(Endless()))
    with pytest.raises(TypeError, match="the data has no length"):
        len(run)
    for epoch in run.epochs():
        with pytest.raises(TypeError, match="the data has no length"):
            len(epoch)
        break


@pytest.mark.parametrize("name", ["a/b", "..", "", "latest", "500", "x" * 300, "sp ace", 5])
def test_names_of_saves_are_checked_at_the_call(name: Any) -> None:
    run = build().run(None)
    with pytest.raises(UsageError) as raised:
        run.save(name)
    assert repr(name) in raised.value.message
    assert raised.value.hint
