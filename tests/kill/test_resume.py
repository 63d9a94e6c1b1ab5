"""What else a resume must do: open nothing that it skips, and go on in a process that has begun the run before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.kill.campaign import TIMEOUT_S, Campaign, end_orphans
from tests.kill.moments import Moment
from tests.kill.variants import LOOPS, Variant

pytestmark = pytest.mark.slow
NUM_SAMPLES, BATCH, SAVE_STEPS = 60, 4, 5


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_in_the_middle_of_an_epoch_opens_no_skipped_sample(
    campaign: Campaign, tmp_path: Path, workers: int
) -> None:
    variant = Variant(
        name="one-pass", script="one_pass.py", args=(str(workers),), num_steps=30, epoch_steps=15, save_steps=SAVE_STEPS
    )
    path = tmp_path / "run"
    killed = campaign.start(
        variant, path, Moment(place="after-update", step=12, victim="trainer"), fired=tmp_path / "fired"
    )
    assert killed.wait(TIMEOUT_S) == -9, killed.stderr
    end_orphans([killed])
    trained = _steps(path)
    path.with_suffix(".opened").unlink()
    path.with_suffix(".trained").unlink()
    resumed = campaign.start(variant, path)
    assert resumed.wait(TIMEOUT_S) == 0, resumed.stderr
    opened = [int(line) for line in path.with_suffix(".opened").read_text("ascii").split()]
    skipped = {index for step in range(10) for index in trained[step]}
    assert len(skipped) == 10 * BATCH
    assert min(_steps(path)) == 10, "it went on at the last save"
    first_epoch, second_epoch = NUM_SAMPLES - len(skipped), NUM_SAMPLES
    assert len(opened) == first_epoch + second_epoch
    counts = Counter(opened)
    assert all(counts[index] == (1 if index in skipped else 2) for index in range(NUM_SAMPLES))
    again = _steps(path)
    assert all(again[step] == trained[step] for step in (10, 11, 12))


@pytest.mark.parametrize("stops", [("13",), ("3", "13"), ("8", "9", "20"), ("end",)])
def test_a_cell_that_is_run_again_goes_on(campaign: Campaign, tmp_path: Path, stops: tuple[str, ...]) -> None:
    script = LOOPS / "cell_again.py"
    results = []
    for name, args in (("once", ("end",)), ("again", (*stops, "end"))):
        child = campaign.server.start_script(script, [str(tmp_path / name), *args], cwd=tmp_path)
        assert child.wait(TIMEOUT_S) == 0, child.stderr
        assert "Traceback" not in child.stderr
        results.append(child.stdout.splitlines())
    once, again = results
    assert once[-1].startswith("result ")
    assert again[-1] == once[-1]
    begins = [int(line.split()[-1]) for line in again if line.startswith("begins at")]
    assert begins[0] == 0
    # save_steps=4 in epochs of 9 steps; the boundary of the step in flight is saved where it costs little
    saves = [0, 4, 8, 9, 12, 16, 18, 20, 24, 27]
    for stop, begin in zip((27 if stop == "end" else int(stop) for stop in stops), begins[1:], strict=True):
        assert max(save for save in saves if save <= stop) <= begin <= stop


def _steps(path: Path) -> dict[int, list[int]]:
    steps: dict[int, list[int]] = {}
    for line in path.with_suffix(".trained").read_text("ascii").splitlines():
        step, index = map(int, line.split())
        steps.setdefault(step, []).append(index)
    return steps
