"""Every resume proves itself: what Stepfast was not given is caught by the comparison alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stepfast.store.progress import NO_DIGEST, ProgressRow, read_progress
from stepfast.trainer.selfcheck import SelfCheck
from tests.trainer import scene
from tests.trainer.conftest import Said
from tests.trainer.scene import Crash, Run, build

pytestmark = pytest.mark.slow


def test_an_honest_run_says_all_equal(tmp_path: Path, said: Said) -> None:
    scene.crash_at(tmp_path / "run", 8)
    said.forget()
    scene.finish(tmp_path / "run")
    said.one("2 finished steps will be computed again and compared")
    assert said.one("2 steps computed again, all equal").endswith("all equal to what was seen before the crash")
    assert said.nothing("is not as it was")


def test_nothing_to_compute_again_is_said(tmp_path: Path, said: Said) -> None:
    scene.crash_at(tmp_path / "run", 6)
    said.forget()
    build().run(tmp_path / "run").close()
    said.one("nothing to compute again")


def test_steps_before_the_first_save_are_compared_too(tmp_path: Path, said: Said) -> None:
    scene.crash_at(tmp_path / "run", 2)
    said.forget()
    scene.finish(tmp_path / "run")
    said.one("an earlier start saved nothing; beginning at step 0 again", "2 steps will be computed again and compared")
    said.one("2 steps computed again, all equal")


class Once:
    """True the first time it is asked."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        asked, self._asked = self._asked, True
        return not asked


def caught(tmp_path: Path, said: Said, start: Callable[[Path], object], *, step: int, cause: str) -> None:
    """Start it, let it crash, start it again: the first step that differs and the usual cause are named."""
    with pytest.raises(Crash):
        start(tmp_path / "run")
    said.forget()
    start(tmp_path / "run")
    line = said.one("is not as it was before the crash")
    assert line.startswith(f"step {step} is not as it was before the crash (loss ")
    assert cause in line
    assert said.one("steps computed again").endswith(f"; the first that differs is step {step}")
    assert said.nothing("all equal")


def test_environment_that_run_was_not_given(tmp_path: Path, said: Said) -> None:
    """A random environment with a generator of its own, made by the script, which no state of ours holds."""
    is_first = Once()

    def start(path: Path) -> None:
        script = build()
        environment = torch.Generator()
        environment.manual_seed(5)
        run = script.run(path)
        for batch in run:
            loss = scene.loss_of(script, batch)
            scene.update(script, loss)
            run.log(loss=loss.detach() + torch.rand((), generator=environment))
            if run.step == 8 and is_first():
                raise Crash

    caught(
        tmp_path, said, start, step=6, cause="the batch is the same, what was logged is not: state that Stepfast was"
    )


def test_batch_drawn_before_the_loop(tmp_path: Path, said: Said) -> None:
    """The next batch is drawn at the end of each step and kept in a variable: it is lost with the process."""
    is_first = Once()

    def start(path: Path) -> None:
        script = build()
        batch = (torch.randn(4, 3), torch.randn(4, 2))
        run = script.run(path, data=None, steps=10)
        for _ in run:
            scene.do_step(run, script, batch)
            batch = (torch.randn(4, 3), torch.randn(4, 2))
            if run.step == 8 and is_first():
                raise Crash

    caught(tmp_path, said, start, step=6, cause="state that Stepfast was not given")


def test_source_of_batches_with_a_hidden_state(tmp_path: Path, said: Said) -> None:
    """Its order comes from a file's worth of state that nobody can find."""
    is_first = Once()
    number = 0

    class Stream:
        def __iter__(self) -> Iterator[Any]:
            nonlocal number
            for _ in range(5):
                number += 1
                yield torch.full((4, 3), float(number)), torch.ones(4, 2)

        def __len__(self) -> int:
            return 5

    def start(path: Path) -> None:
        script = build()
        run = script.run(path, data=Stream())
        for batch in run:
            scene.do_step(run, script, batch)
            if run.step == 8 and is_first():
                raise Crash

    caught(tmp_path, said, start, step=6, cause="the batch differs: a dataset, vocabulary or split")


class Noisy(nn.Module):
    """Dropout of its own, from a generator that is no part of its state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self.generator.manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand(x.shape, generator=self.generator) > 0.3)


def test_generator_inside_the_model(tmp_path: Path, said: Said) -> None:
    is_first = Once()

    def start(path: Path) -> None:
        script = build(net=lambda: scene.model(drop=Noisy()))
        run = script.run(path)
        for batch in run:
            scene.do_step(run, script, batch)
            if run.step == 8 and is_first():
                raise Crash

    caught(tmp_path, said, start, step=6, cause="a generator")


def test_generator_that_run_was_given(tmp_path: Path, said: Said) -> None:
    """The same model; its generator in extra= makes the resume exact."""
    is_first = Once()

    def start(path: Path | None) -> scene.Final:
        script = build(net=lambda: scene.model(drop=Noisy()))
        run = script.run(path, extra={"noise": script.model.drop.generator})
        script.model.train()
        for batch in run:
            scene.do_step(run, script, batch)
            if run.step == 8 and path is not None and is_first():
                raise Crash
        return scene.final(run, script)

    straight = start(None)
    with pytest.raises(Crash):
        start(tmp_path / "run")
    assert start(tmp_path / "run") == straight
    said.one("2 steps computed again, all equal")


def test_a_difference_goes_to_the_ledger(tmp_path: Path, said: Said) -> None:
    from stepfast.store import ledger

    test_generator_inside_the_model(tmp_path, said)
    events, damaged = ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert damaged == 0
    (event,) = (event for event in events if event["event"] == "resume-differs")
    assert (event["step"], event["what"]) == (6, "loss")
    assert any(event["event"] == "resume-checked" for event in events)


def test_moved_generator_is_a_warning_with_the_fix(tmp_path: Path, said: Said) -> None:
    script = build()
    run = script.run(tmp_path / "run")
    torch.rand(3)  # a first batch drawn before the loop
    scene.train(run, script)
    line = said.one("warning: a global random generator moved between Run and the first batch")
    assert "Do that before Run, or inside the loop and keep it in run.state" in line


def test_draws_before_run_are_no_warning(tmp_path: Path, said: Said) -> None:
    torch.rand(3)
    scene.finish(tmp_path / "run")
    assert said.nothing("warning")


# ------------------------------------------------------------------ rows


def row(step: int, *, values: bytes = b"v" * 16, batch: bytes | None = b"b" * 16) -> ProgressRow:
    return ProgressRow(step=step, epoch=0, batch=step, values_digest=values, loss=1.0, batch_digest=batch)


def test_first_difference_is_told_once_and_kept() -> None:
    check = SelfCheck(expected={step: row(step) for step in (4, 5, 6, 7)})
    assert check.compare(row(4)) is None
    first = check.compare(row(5, values=b"x" * 16))
    assert first is not None
    assert (first.step, first.what) == (5, "loss")
    assert check.compare(row(6, batch=b"x" * 16)) is None
    assert not check.is_done
    check.compare(row(7))
    assert check.is_done
    assert check.verdict() == "4 steps computed again; the first that differs is step 5"


def test_the_batch_is_blamed_before_the_loss() -> None:
    check = SelfCheck(expected={4: row(4)})
    difference = check.compare(row(4, values=b"x" * 16, batch=b"x" * 16))
    assert difference is not None
    assert difference.what == "batch"


@pytest.mark.parametrize(
    ("was", "words"),
    [
        (row(4, batch=None), "all equal to what was seen before the crash (batches of 0 of them compared)"),
        (row(4, values=NO_DIGEST), "the first that differs is step 4"),
    ],
)
def test_what_could_not_be_compared_is_said(was: ProgressRow, words: str) -> None:
    check = SelfCheck(expected={4: was})
    check.compare(row(4))
    assert check.verdict().endswith(words)


def test_nothing_comparable_is_not_called_equal() -> None:
    check = SelfCheck(expected={4: row(4, values=NO_DIGEST, batch=None)})
    check.compare(row(4, values=NO_DIGEST, batch=None))
    assert "nothing could be compared" in check.verdict()
    assert "equal" not in check.verdict()


def test_digests_of_batches_are_thinned_out_where_they_cost_too_much(tmp_path: Path, said: Said) -> None:
    """Batches of 32 MB beside steps of a few microseconds: only every n-th is read, and the verdict says so."""
    big = torch.zeros(8 << 20)
    is_first = Once()

    def start() -> None:
        run = Run(tmp_path / "run", model=nn.Linear(1, 1), data=[big] * 150, epochs=1, save_steps=25, scheduler=None)
        for _ in run:
            run.log(loss=run.step)
            if run.step == 149 and is_first():
                run.close()
                return

    start()
    rows = read_progress(tmp_path / "run" / "progress.bin")
    read = [step for step, one in rows.items() if one.batch_digest is not None]
    assert read[:16] == list(range(16)), "at first all"
    assert len(read) < 140
    assert {step % 2 for step in read[-10:]} == {0}, "starts that came to different n have steps in common"
    said.forget()
    start()
    line = said.one("steps computed again")
    assert "batches of" in line
    assert "of them compared" in line


def test_every_batch_is_read_where_that_costs_little(tmp_path: Path) -> None:
    scene.finish(tmp_path / "run")
    rows = read_progress(tmp_path / "run" / "progress.bin")
    assert sorted(rows) == list(range(10))
    assert all(one.batch_digest is not None for one in rows.values())
    assert [one.loss is not None for one in rows.values()] == [True] * 10
