"""Every way to leave a loop, and that the next start ends with the very same model and history."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import stepfast
from tests.trainer import scene
from tests.trainer.conftest import Said
from tests.trainer.scene import Crash, Final, Run, Script, do_step, tail

pytestmark = pytest.mark.slow

Undisturbed = Callable[..., Final]


class Trap:
    """Springs once, at a place of a step."""

    def __init__(self, place: str, step: int, act: Callable[[Run], object] | None = None) -> None:
        self._at = (place, step)
        self._act = act
        self.has_sprung = False

    def __call__(self, place: str, run: Run) -> bool:
        if self.has_sprung or (place, run.step) != self._at:
            return False
        self.has_sprung = True
        if self._act is not None:
            self._act(run)
        return True


def crash(_: Run) -> None:
    raise Crash


NEVER = Trap("nowhere", -1)


def visit(run: Run, script: Script, trap: Trap = NEVER) -> None:
    """The script with a trap at every place where a person's code may be when something happens."""
    for epoch in run.epochs():
        trap("head", run)
        script.model.train()
        for batch in epoch:
            trap("before forward", run)
            loss = scene.loss_of(script, batch)
            trap("after forward", run)
            loss.backward()
            trap("after backward", run)
            script.optimizer.step()
            trap("after update", run)
            script.scheduler.step()
            script.optimizer.zero_grad()
            run.log(loss=loss)
            trap("step end", run)
        trap("tail", run)
        tail(run, epoch)
        trap("tail end", run)


# ------------------------------------------------------------------ exceptions


@pytest.mark.parametrize(
    ("place", "step", "goes_on_at", "again"),
    [
        ("head", 0, 0, 0),
        ("after forward", 0, 0, 0),
        ("after forward", 4, 4, 0),  # running statistics were written, generators moved: the copies are saved
        ("after update", 4, 3, 1),
        ("step end", 8, 6, 2),
        ("tail end", 4, 3, 1),
        ("tail end", 9, 9, 0),
    ],
)
def test_exception(
    tmp_path: Path,
    said: Said,
    undisturbed: Undisturbed,
    place: str,
    step: int,
    goes_on_at: int,
    again: int,
) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run")
    with pytest.raises(Crash):
        visit(run, script, Trap(place, step, crash))
    said.one("left by an exception")

    script = scene.build()
    run = script.run(tmp_path / "run")
    assert run.step == goes_on_at
    if goes_on_at or run.receipt is not None:
        assert run.receipt is not None
        assert run.receipt.computed_again == again
    visit(run, script)
    assert scene.final(run, script) == undisturbed()
    assert said.nothing("is not as it was")


@pytest.mark.parametrize("kind", ["epochs", "run"])
@pytest.mark.parametrize("batch", [0, 7])
def test_exception_in_the_loader(tmp_path: Path, undisturbed: Undisturbed, kind: str, batch: int) -> None:
    script = scene.build()
    source = _Failing(script.loader, at=batch)
    run = script.run(tmp_path / "run", data=source, save_steps=0)
    with pytest.raises(Crash):
        _loop_of(kind)(run, script)
    source.at = None

    script = scene.build()
    run = script.run(tmp_path / "run", data=_Failing(script.loader, at=None), save_steps=0)
    assert run.step == batch, "the boundary before the batch that failed is whole and is what was saved"
    _loop_of(kind)(run, script)
    assert scene.final(run, script) == undisturbed(_loop_of(kind))


class _Failing:
    """An iterable that fails at its batch number `at`, counted over all epochs."""

    def __init__(self, loader: Any, at: int | None) -> None:
        self._loader = loader
        self._given = 0
        self.at = at

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            if self._given == self.at:
                raise Crash
            self._given += 1
            yield batch


def over_run(run: Run, script: Script) -> None:
    script.model.train()
    for batch in run:
        do_step(run, script, batch)


def _loop_of(kind: str) -> Callable[[Run, Script], None]:
    return scene.train if kind == "epochs" else over_run


# ------------------------------------------------------------------ break, return


def breaks_epochs(run: Run, script: Script, trap: Trap = NEVER) -> None:
    """Ends its epochs early, before the update in the first and after it in the second."""
    for epoch in run.epochs():
        script.model.train()
        for batch in epoch:
            if run.epoch == 0 and run.batch_index == 3:
                break
            do_step(run, script, batch)
            trap("step end", run)
            if run.epoch == 1 and run.batch_index == 2:
                break
        tail(run, epoch)
        trap("tail end", run)


@pytest.mark.parametrize(("place", "step"), [("tail end", 3), ("step end", 4)])
def test_break_ends_the_epoch_and_names_what_is_left_out(
    tmp_path: Path, said: Said, undisturbed: Undisturbed, place: str, step: int
) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run", save_steps=2)
    trap = Trap(place, step, crash)
    try:
        breaks_epochs(run, script, trap)
    except Crash:
        script = scene.build()
        run = script.run(tmp_path / "run", save_steps=2)
        breaks_epochs(run, script)
    assert trap.has_sprung
    assert scene.final(run, script) == undisturbed(breaks_epochs)
    # A batch that was fetched and never used is left out too: 3 and 4 of the first epoch, and of the second.
    assert said.with_words("epoch 1 ended by break", "2 batches left out")
    assert said.with_words("epoch 2 ended by break", "2 batches left out")
    assert run.history["loss"] == [value for _, _, name, value in run.history.rows() if name == "loss"]


def leave_by_break(run: Run, script: Script, step: int, place: str) -> None:
    for epoch in run.epochs():
        script.model.train()
        stopped = False
        for batch in epoch:
            stopped = run.step == step
            if stopped and place == "before":
                break
            do_step(run, script, batch)
            if stopped and place == "after":
                break
        if stopped and place != "tail":
            break
        tail(run, epoch)
        if stopped:
            break


def leave_by_return(run: Run, script: Script, step: int, place: str) -> None:
    for epoch in run.epochs():
        script.model.train()
        for batch in epoch:
            if run.step == step and place == "before":
                return
            do_step(run, script, batch)
            if run.step == step and place == "after":
                return
        tail(run, epoch)
        if run.step == step and place == "tail":
            return


@pytest.mark.parametrize(
    ("leave", "step", "place", "goes_on_at"),
    [
        (leave_by_break, 0, "before", 0),
        (leave_by_break, 3, "before", 3),
        (leave_by_return, 7, "after", 8),
        (leave_by_break, 4, "tail", 5),
        (leave_by_break, 9, "after", 10),
    ],
)
def test_leaving_the_outer_loop_pauses(
    tmp_path: Path,
    said: Said,
    undisturbed: Undisturbed,
    leave: Callable[..., None],
    step: int,
    place: str,
    goes_on_at: int,
) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run")
    leave(run, script, step, place)
    line = said.one("paused")
    if goes_on_at:
        assert f"paused at step {goes_on_at} (break); the next start goes on" in line
    assert 'run.finish("early stop")' in line

    script = scene.build()
    run = script.run(tmp_path / "run")
    assert run.step == goes_on_at
    assert run.receipt is not None
    assert run.receipt.computed_again == 0
    scene.train(run, script)
    if (step, place) == (9, "after"):
        # The last step's update was made, and the loop was left before its tail: it is paused, not complete.
        assert scene.final(run, script).weights == undisturbed().weights
    else:
        assert scene.final(run, script) == undisturbed()


def test_break_out_of_a_run_without_epochs(tmp_path: Path, said: Said, undisturbed: Undisturbed) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run", save_steps=0)
    script.model.train()
    for batch in run:
        do_step(run, script, batch)
        if run.step == 6:
            break
    said.one("paused at step 7 (break)")
    assert scene.finish(tmp_path / "run", over_run, save_steps=0) == undisturbed(over_run)


# ------------------------------------------------------------------ signals


@pytest.mark.parametrize("place", ["after forward", "tail"])
def test_ctrl_c_once_finishes_the_step_and_saves(
    tmp_path: Path, said: Said, undisturbed: Undisturbed, place: str
) -> None:
    before = signal.getsignal(signal.SIGINT)
    script = scene.build()
    run = script.run(tmp_path / "run")
    trap = Trap(place, 4, lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        visit(run, script, trap)
    assert signal.getsignal(signal.SIGINT) is before
    said.one("finishing this step, then saving; Ctrl-C again stops now")
    said.one("Ctrl-C: step 5 is durable")

    script = scene.build()
    run = script.run(tmp_path / "run")
    assert (run.step, run.receipt.computed_again) == (5, 0)
    visit(run, script)
    assert scene.final(run, script) == undisturbed()


def test_ctrl_c_twice_stops_at_once(tmp_path: Path, said: Said, undisturbed: Undisturbed) -> None:
    def twice(_: Run) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second Ctrl-C did not stop here")

    script = scene.build()
    run = script.run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        visit(run, script, Trap("after update", 7, twice))

    script = scene.build()
    run = script.run(tmp_path / "run")
    assert run.step == 6, "the newest snapshot is written all the same"
    visit(run, script)
    assert scene.final(run, script) == undisturbed()


def test_sigterm_saves_and_leaves_with_143(tmp_path: Path, said: Said, undisturbed: Undisturbed) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run")
    with pytest.raises(SystemExit) as left:
        visit(run, script, Trap("after backward", 7, lambda _: os.kill(os.getpid(), signal.SIGTERM)))
    assert left.value.code == 143
    said.one("SIGTERM: step 8 is durable")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert scene.finish(tmp_path / "run", visit) == undisturbed()


def test_sigterm_calls_the_handler_that_was_there(tmp_path: Path) -> None:
    class Chained(BaseException):
        pass

    def theirs(*_: object) -> None:
        raise Chained

    before = signal.signal(signal.SIGTERM, theirs)
    try:
        script = scene.build()
        run = script.run(tmp_path / "run")
        with pytest.raises(Chained):
            visit(run, script, Trap("after backward", 4, lambda _: os.kill(os.getpid(), signal.SIGTERM)))
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)
    peeked = stepfast.peek(str(tmp_path / "run"))
    assert peeked is not None
    assert peeked.step == 5


def test_sigusr1_saves_and_goes_on(tmp_path: Path, undisturbed: Undisturbed) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run", save_steps=0)
    visit(run, script, Trap("after backward", 2, lambda _: os.kill(os.getpid(), signal.SIGUSR1)))
    assert scene.final(run, script) == undisturbed()
    assert (tmp_path / "run" / "checkpoints" / "step-00000003").is_dir()


def test_handlers_live_only_while_the_loop_iterates(tmp_path: Path) -> None:
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in watched]
    script = scene.build()
    run = script.run(tmp_path / "run")
    assert [signal.getsignal(number) for number in watched] == before
    inside: list[Any] = []
    for epoch in run.epochs():
        inside = [signal.getsignal(number) for number in watched]
        for batch in epoch:
            do_step(run, script, batch)
    assert all(now is not was for now, was in zip(inside, before, strict=True))
    assert [signal.getsignal(number) for number in watched] == before


# ------------------------------------------------------------------ the end


def finishes(run: Run, script: Script) -> None:
    for epoch in run.epochs():
        script.model.train()
        for batch in epoch:
            do_step(run, script, batch)
            if run.step == 6:
                run.finish("early stop")
        tail(run, epoch)


def finishes_in_tail(run: Run, script: Script) -> None:
    for epoch in run.epochs():
        script.model.train()
        for batch in epoch:
            do_step(run, script, batch)
        tail(run, epoch)
        run.finish("good enough")


@pytest.mark.parametrize(
    ("loop", "reason", "steps"), [(finishes, "early stop", 7), (finishes_in_tail, "good enough", 5)]
)
def test_finish_ends_for_good(
    tmp_path: Path, said: Said, undisturbed: Undisturbed, loop: Callable[[Run, Script], None], reason: str, steps: int
) -> None:
    first = scene.finish(tmp_path / "run", loop)
    assert first.step == steps
    assert first == undisturbed(loop)
    said.one("is finished", reason, f"{steps} steps", "the final state is durable")
    said.forget()

    def must_not_run(run: Run, script: Script) -> None:
        for _ in run.epochs():
            raise AssertionError("the loop of a finished run was entered")

    assert scene.finish(tmp_path / "run", must_not_run) == first
    line = said.one("is finished", "the loop is skipped")
    assert reason in line
    assert "STEPFAST_RESUME=fresh" in line


def test_finish_before_a_crash_is_kept_by_the_step_computed_again(tmp_path: Path, undisturbed: Undisturbed) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run")

    def loop() -> None:
        for epoch in run.epochs():
            script.model.train()
            for batch in epoch:
                do_step(run, script, batch)
                if run.step == 6:
                    run.finish("early stop")
                    raise Crash
            tail(run, epoch)

    with pytest.raises(Crash):
        loop()
    assert scene.finish(tmp_path / "run", finishes) == undisturbed(finishes)


def test_finished_run_started_again_restores_everything(tmp_path: Path, said: Said, undisturbed: Undisturbed) -> None:
    assert scene.finish(tmp_path / "run") == undisturbed()
    before = scene.files(tmp_path / "run")
    said.forget()
    assert scene.finish(tmp_path / "run") == undisturbed()
    line = said.one("is finished", "final state loaded, the loop is skipped")
    assert "(2 epochs, 10 steps)" in line
    assert "More: epochs=3. Again: STEPFAST_RESUME=fresh" in line
    assert scene.files(tmp_path / "run") == before, "nothing is written for a run that is finished"


def test_epochs_raised_after_the_end_goes_on(tmp_path: Path) -> None:
    straight = scene.finish(None, epochs=3)
    scene.finish(tmp_path / "run", epochs=2)
    assert scene.finish(tmp_path / "run", epochs=3) == straight


def test_steps_raised_after_the_end_goes_on(tmp_path: Path) -> None:
    straight = scene.finish(None, over_run, steps=12)
    scene.finish(tmp_path / "run", over_run, steps=7)
    assert scene.finish(tmp_path / "run", over_run, steps=12) == straight


def test_fresh_moves_the_old_run_away_and_deletes_nothing(
    tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.finish(tmp_path / "run")
    before = scene.files(tmp_path / "run")
    monkeypatch.setenv("STEPFAST_RESUME", "fresh")
    script = scene.build()
    run = script.run(tmp_path / "run")
    assert (run.step, run.receipt) == (0, None)
    scene.train(run, script)
    assert scene.final(run, script) == undisturbed()
    (moved,) = (path for path in tmp_path.iterdir() if path.name.startswith("run.old-"))
    assert scene.files(moved) == before


# ------------------------------------------------------------------ with, close, exit


def test_with_block_left_by_an_exception(tmp_path: Path, undisturbed: Undisturbed) -> None:
    script = scene.build()
    with pytest.raises(Crash), script.run(tmp_path / "run") as run:
        visit(run, script, Trap("step end", 5, crash))
    script = scene.build()
    with script.run(tmp_path / "run") as run:
        assert (run.step, run.receipt.computed_again) == (5, 0)
        visit(run, script)
    assert scene.final(run, script) == undisturbed()


def test_with_block_whose_loop_was_never_begun(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with scene.build().run(tmp_path / "run"):
        pass
    assert scene.finish(tmp_path / "run") == undisturbed()


def test_close_in_the_middle_of_the_loop(tmp_path: Path, undisturbed: Undisturbed) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run")
    for epoch in run.epochs():
        for batch in epoch:
            do_step(run, script, batch)
            if run.step == 4:
                run.close()
                break
        break
    script = scene.build()
    run = script.run(tmp_path / "run")
    assert run.step in (3, 4, 5)
    scene.train(run, script)
    assert scene.final(run, script) == undisturbed()


def test_going_on_after_close_is_a_named_error(tmp_path: Path) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run")

    def loop() -> None:
        for epoch in run.epochs():
            for batch in epoch:
                do_step(run, script, batch)
                run.close()

    with pytest.raises(stepfast.StepfastError) as error:
        loop()
    assert "close" in error.value.message
    assert error.value.hint


def test_close_twice_and_after_the_end(tmp_path: Path) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run")
    scene.train(run, script)
    run.close()
    run.close()
    with pytest.raises(stepfast.StepfastError, match="the loop has ended"):
        run.save()


def test_sys_exit_in_the_body(tmp_path: Path, undisturbed: Undisturbed) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run")
    with pytest.raises(SystemExit, match="7"):
        visit(run, script, Trap("before forward", 5, lambda _: sys.exit(7)))
    script = scene.build()
    run = script.run(tmp_path / "run")
    assert (run.step, run.receipt.computed_again) == (5, 0)
    visit(run, script)
    assert scene.final(run, script) == undisturbed()


# ------------------------------------------------------------------ loops of other shapes


def bar(items: Iterable[Any]) -> Iterator[Any]:
    """What tqdm does: a generator around the iterable, with something to do at its end."""
    try:
        for item in items:  # noqa: UP028 - tqdm does it so, and a frame more is the point
            yield item
    finally:
        pass


def with_bar(run: Run, script: Script, trap: Trap = NEVER, stop_at: int | None = None) -> None:
    for epoch in run.epochs():
        script.model.train()
        for batch in bar(epoch):
            do_step(run, script, batch)
            trap("step end", run)
            if run.step == stop_at:
                return
        tail(run, epoch)


def with_both_bars(run: Run, script: Script, trap: Trap = NEVER, stop_at: int | None = None) -> None:
    for epoch in bar(run.epochs()):
        script.model.train()
        for _, batch in enumerate(bar(epoch)):
            do_step(run, script, batch)
            trap("step end", run)
            if run.step == stop_at:
                return
        tail(run, epoch)


def with_enumerate(run: Run, script: Script, trap: Trap = NEVER, stop_at: int | None = None) -> None:
    for epoch in run.epochs():
        script.model.train()
        for _, batch in enumerate(epoch):
            do_step(run, script, batch)
            trap("step end", run)
            if run.step == stop_at:
                return
        tail(run, epoch)


def with_zip(run: Run, script: Script, trap: Trap = NEVER, stop_at: int | None = None) -> None:
    for epoch in run.epochs():
        script.model.train()
        for batch, _ in zip(epoch, range(1000), strict=False):
            do_step(run, script, batch)
            trap("step end", run)
            if run.step == stop_at:
                return
        tail(run, epoch)


def with_generator(run: Run, script: Script, trap: Trap = NEVER, stop_at: int | None = None) -> None:
    def steps() -> Iterator[int]:
        for epoch in run.epochs():
            script.model.train()
            for batch in epoch:
                do_step(run, script, batch)
                yield run.step
            tail(run, epoch)

    for step in steps():
        trap("step end", run)
        if step == stop_at:
            return


def with_variables(run: Run, script: Script, trap: Trap = NEVER, stop_at: int | None = None) -> None:
    epochs = iter(run.epochs())
    for epoch in epochs:
        script.model.train()
        batches = iter(epoch)
        for batch in batches:
            do_step(run, script, batch)
            trap("step end", run)
            if run.step == stop_at:
                return
        tail(run, epoch)


@pytest.mark.parametrize("loop", [with_variables, with_both_bars, with_zip, with_generator])
def test_loop_of_another_shape_left_by_an_exception(
    tmp_path: Path, undisturbed: Undisturbed, loop: Callable[..., None]
) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run")
    with pytest.raises(Crash):
        loop(run, script, Trap("step end", 7, crash))
    script = scene.build()
    run = script.run(tmp_path / "run")
    assert run.step == 6, "after the update an exception counts nothing"
    loop(run, script)
    assert scene.final(run, script) == undisturbed()


@pytest.mark.parametrize("loop", [with_variables, with_bar, with_enumerate])
def test_loop_of_another_shape_left_on_purpose(
    tmp_path: Path, undisturbed: Undisturbed, loop: Callable[..., None]
) -> None:
    script = scene.build()
    run = script.run(tmp_path / "run")
    loop(run, script, stop_at=7)
    script = scene.build()
    run = script.run(tmp_path / "run")
    # In doubt it was an exception: an iterator in a variable is closed by whoever lets go of it last.
    assert run.step == (6 if loop is with_variables else 8)
    loop(run, script)
    assert scene.final(run, script) == undisturbed()


def test_second_run_on_the_same_path_closes_the_first(tmp_path: Path, undisturbed: Undisturbed) -> None:
    first_script = scene.build()
    first = first_script.run(tmp_path / "run")
    loop = iter(first.epochs())  # a cell that was interrupted keeps its loop alive
    for batch in next(loop):
        do_step(first, first_script, batch)
        if first.step == 4:
            break
    script = scene.build()
    second = script.run(tmp_path / "run")
    assert second.step == 3
    scene.train(second, script)
    assert scene.final(second, script) == undisturbed()
    with pytest.raises(stepfast.StepfastError):
        first.save()


def test_a_run_that_was_dropped_lets_go(tmp_path: Path) -> None:
    def main() -> None:
        scene.build().run(tmp_path / "run")
        scene.started.clear()

    main()
    gc.collect()
    with scene.build().run(tmp_path / "run") as run:
        assert run.step == 0


def test_the_script_changes_its_directory(
    tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = scene.build()
    run = script.run("run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(Crash):
        visit(run, script, Trap("after update", 7, crash))
    monkeypatch.chdir(tmp_path)
    script = scene.build()
    run = script.run("run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with torch.no_grad():
        next(script.model.parameters()).add_(1.0)  # makes the run read the checkpoint once more at its first batch
    visit(run, script)
    assert scene.final(run, script) == undisturbed()
    assert not list((tmp_path / "elsewhere").iterdir())


# ------------------------------------------------------------------ nothing kept


@pytest.mark.parametrize("how", ["None", "STEPFAST_OFF"])
def test_bare_loop_has_the_same_numbers_and_leaves_nothing(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    kept = scene.finish(tmp_path / "kept", with_everything)
    children = _children()
    said.forget()
    if how == "STEPFAST_OFF":
        monkeypatch.setenv("STEPFAST_OFF", "1")
    path = tmp_path / "off" if how == "STEPFAST_OFF" else None
    script = scene.build()
    run = script.run(path)
    assert (run.id, run.path, run.receipt) == (None, None, None)
    assert _children() == children
    with_everything(run, script)
    assert scene.final(run, script) == kept
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
    assert said.lines == []
    run.close()


def with_everything(run: Run, script: Script) -> None:
    for epoch in run.epochs():
        script.model.train()
        for index, batch in epoch.enumerate():
            do_step(run, script, batch)
            run.log({"index": index, "window": run.window_size}, end=run.window_end)
            if index == 2:
                run.save("third")
            if run.epoch == 1 and index == 3:
                break
        tail(run, epoch)


def _children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split())


def test_bare_loop_may_be_left_in_any_way() -> None:
    script = scene.build()
    run = script.run(None)
    with pytest.raises(Crash):
        visit(run, script, Trap("step end", 2, crash))
    run = script.run(None)
    for _ in run:
        break
    run = script.run(None)
    for _ in run:
        run.finish("enough")
    assert run.step == 1
