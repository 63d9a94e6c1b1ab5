"""What may go, and how it goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.core import points
from stepfast.core.errors import UsageError
from stepfast.policy.retention import Kept, Plan, Retention, plan
from stepfast.store.staging import clean_leftovers
from stepfast.store.tidy import apply_plan
from tests.store import build

CHECKPOINTS = st.lists(
    st.builds(
        Kept,
        step=st.integers(0, 50),
        verified=st.sampled_from([True, False, None]),
        tags=st.sampled_from([(), (), ("best",)]),
    ),
    max_size=12,
    unique_by=lambda checkpoint: checkpoint.step,
)


@given(CHECKPOINTS, st.integers(1, 5), st.booleans())
def test_properties(checkpoints: list[Kept], newest: int, tags: bool) -> None:
    retention = Retention(newest=newest, tags=tags)
    result = plan(checkpoints, retention)
    steps = {checkpoint.step for checkpoint in checkpoints}
    assert set(result.delete) | set(result.keep) == steps == result.reasons.keys()
    assert not set(result.delete) & set(result.keep)
    kept = [checkpoint for checkpoint in checkpoints if checkpoint.step in result.keep]
    verified = [checkpoint.step for checkpoint in checkpoints if checkpoint.verified]
    if verified:
        assert max(verified) in result.keep
    else:
        assert not result.delete
    usable = sorted(checkpoint.step for checkpoint in checkpoints if checkpoint.verified is not False)
    assert set(usable[-newest:]) <= set(result.keep)
    if tags:
        assert all(not checkpoint.tags for checkpoint in checkpoints if checkpoint.step in result.delete)
    if verified:  # and nothing is kept without a reason
        for checkpoint in kept:
            assert (
                checkpoint.step in usable[-newest:]
                or (checkpoint.tags and tags)
                or checkpoint.verified is False
                or checkpoint.step == max(verified)
            )
    # Planning again after doing it finds nothing more to do.
    assert plan(kept, retention).delete == ()


def test_the_usual_case() -> None:
    result = plan([Kept(step=step, verified=True) for step in (1, 2, 3, 4, 5)], Retention(newest=2))
    assert result.delete == (1, 2, 3)
    assert result.reasons[1] == "deleted: older than the newest 2"


def test_nothing_kept_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Retention(newest=0)


def test_apply(tmp_path: Path) -> None:
    run = build.make_run(tmp_path / "run", steps=(1, 2, 3, 4))
    run.set_tag("best", 2)
    # The plan is older than the tag, and than a deletion.
    assert apply_plan(run, Plan(delete=(1, 2, 3, 77), keep=(4,))) == [1, 3]
    assert run.steps() == [2, 4]
    assert sorted(os.listdir(run.checkpoints_path)) == ["step-00000002", "step-00000004"]
    assert apply_plan(run, Plan()) == []


def test_never_all(tmp_path: Path) -> None:
    run = build.make_run(tmp_path / "run", steps=(1, 2))
    with pytest.raises(UsageError, match="every"):
        apply_plan(run, Plan(delete=(1, 2)))
    assert run.steps() == [1, 2]


@pytest.mark.parametrize("where", ["tidy:renamed", "tidy:synced"])
def test_a_deletion_that_was_cut_short_is_finished_by_the_next_writer(tmp_path: Path, where: str) -> None:
    run = build.make_run(tmp_path / "run", steps=(1, 2, 3))

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    points.plant(where, kill)
    try:
        with pytest.raises(Killed):
            apply_plan(run, Plan(delete=(1, 2), keep=(3,)))
    finally:
        points.clear()
    assert run.steps() == [3]
    assert len(clean_leftovers(run)) == 2
    assert os.listdir(run.checkpoints_path) == ["step-00000003"]
