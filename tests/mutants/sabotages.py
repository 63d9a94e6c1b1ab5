"""The sabotages: small slips that a maintainer could make, each as a text to replace and what it would cost a user.

The first twelve undo one promise each; the others are the nastiest we could think of. They were written
from the source alone, by somebody who had not seen the tests. Here is no code that applies them: `__main__.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sabotage:
    """One slip."""

    name: str
    file: str
    """Below src/stepfast."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    harm: str
    """What it would do to a user."""
    first: tuple[str, ...] = ()
    """Tests to try before the whole suite, as pytest takes them."""


SABOTAGES = (
    # ------------------------------------------------------------------ one promise each
    Sabotage(
        name="rng-at-load",
        file="trainer/keeping.py",
        old="        self._kit.restore_rng(",
        new="        # Run has put them back already. self._kit.restore_rng(",
        harm="the generators are put back by Run only: whatever the script draws between Run and its first batch (a "
        "sample picture, weights made and thrown away) shifts every draw of a resumed run",
        first=("tests/kill/test_kill.py",),
    ),
    Sabotage(
        name="cursor-off-by-one",
        file="data/position.py",
        old="epoch=self.epoch, batch=self.handed)",
        new="epoch=self.epoch, batch=max(self.handed - 1, 0))",
        harm="a resume in the middle of an epoch trains on the last batch once more, and the epoch has a step too many",
        first=("tests/trainer/test_api.py", "tests/kill/test_kill.py"),
    ),
    Sabotage(
        name="scalar-leaf-lost",
        file="capture/capture.py",
        old="ordered = sorted(leaves, key",
        new="ordered = sorted((leaf for leaf in leaves if leaf.shape), key",
        harm="meant to pass over empty leaves, and passes over those without a dimension: Adam's step counts and the "
        "batches that BatchNorm has seen are zero, or what the slot held before, after a resume",
        first=("tests/trainer/test_ends.py", "tests/kill/test_kill.py"),
    ),
    Sabotage(
        name="private-group-key-lost",
        file="frameworks/torch/optimizer.py",
        old='for key, value in group.items() if key != "params"}',
        new="for key, value in group.items() if key in optimizer.defaults}",
        harm="keys of param_groups that the optimizer does not know itself (layer, warmup_left, initial_lr) are gone "
        "after a resume",
        first=("tests/kill/test_kill.py",),
    ),
    Sabotage(
        name="scaler-lost",
        file="frameworks/torch/adapter.py",
        old='        self._scalers.apply(tree["scalers"], foreign)\n',
        new="",
        harm="a resumed run begins with the scaler's first scale again: other updates are skipped, other gradients "
        "underflow",
        first=("tests/trainer/test_scaler.py",),
    ),
    Sabotage(
        name="waiting-gradients-dropped",
        file="frameworks/torch/adapter.py",
        old='        self._apply_gradients(static, tree["gradients"])\n',
        new="",
        harm="with a window written by hand (if i % 8 == 7) a resume inside the window updates with a part of its "
        "gradients",
        first=("tests/kill/test_kill.py",),
    ),
    Sabotage(
        name="strides-lost",
        file="frameworks/torch/adapter.py",
        old="strides = leaf.strides or tensors.row_major(leaf.shape)",
        new="strides = tensors.row_major(leaf.shape)",
        harm="channels_last weights are contiguous after a resume: slower, and other kernels give other last bits",
        first=("tests/kill/test_kill.py",),
    ),
    Sabotage(
        name="digest-not-compared",
        file="store/reading.py",
        old="        self._refuse(self._stream(stored, sink, targets))",
        new="        self._stream(stored, sink, targets)",
        harm="a flipped bit on disk goes into the weights of a resume without a word; only `verify` would see it",
        first=("tests/store/test_reading.py", "tests/store"),
    ),
    Sabotage(
        name="staging-not-synced",
        file="store/staging.py",
        old='        self._guarded(lambda: durable.fsync_dir(self.path), "sync", "")\n',
        new="",
        harm="after a power cut a checkpoint that was announced as durable can be a directory without its files",
        first=("tests/crash/test_save.py",),
    ),
    Sabotage(
        name="history-cut-short",
        file="trainer/history.py",
        old="return int(file_name[8:16]) < step // SEGMENT_STEPS",
        new="return int(file_name[8:16]) <= step // SEGMENT_STEPS",
        harm="the segment that is still being filled counts as full, so later checkpoints link the one of the first "
        "save: after a resume all that was logged since then is missing from history and epoch.mean (where saves come "
        "faster than commits they are refused instead)",
        first=("tests/trainer/test_api.py", "tests/kill/test_kill.py"),
    ),
    Sabotage(
        name="settings-not-checked",
        file="restore/restore.py",
        old="            check(reader.manifest, loop)\n",
        new="",
        harm="an edited learning rate, batch size or seed is not noticed: the run goes on with the old or the new "
        "value, whichever the place happens to take",
        first=("tests/trainer/test_refused_settings.py",),
    ),
    Sabotage(
        name="tail-twice",
        file="trainer/loop.py",
        old="""\
        if not ends_here:
            position.next_epoch()
        self._boundary(self._keeping.private_state(), epoch_ended=not ends_here, finished=self._end_reason())
""",
        new="""\
        self._boundary(self._keeping.private_state(), epoch_ended=not ends_here, finished=self._end_reason())
        if not ends_here:
            position.next_epoch()
""",
        harm="the checkpoint at an epoch's end still stands in the old epoch: a resume runs its evaluation, and all "
        "else that follows the batches, a second time on state that has it already",
        first=("tests/trainer/test_ends.py", "tests/kill/test_kill.py"),
    ),
    # ------------------------------------------------------------------ our own
    Sabotage(
        name="boundary-after-fetch",
        file="trainer/loop.py",
        old="""\
            if private is not None:
                self._step_boundary(private)
""",
        new="""\
            if private is not None:
                self._step_boundary(keeping.private_state())
""",
        harm="for data without a length the generators are captured when the next batch has been drawn already: a "
        "resume draws it again from a later state, so it is another batch",
        first=("tests/trainer/test_unknown_length.py",),
    ),
    Sabotage(
        name="slot-reused",
        file="trainer/agent_process.py",
        old="return self._free.pop()",
        new="return min(self._free)",
        harm="meant to take the warm slot first, and takes none out: a save that comes while the one before is being "
        "written overwrites it, and a checkpoint holds parts of two steps or fails its digest",
        first=("tests/trainer", "tests/kill/test_kill.py"),
    ),
    Sabotage(
        name="torn-exception-save",
        file="trainer/keep.py",
        old="if record is None or self._has_changed(record):",
        new="if record is None:",
        harm="an exception after optimizer.step() saves updated weights under the step before: the resume makes the "
        "same update twice",
        first=("tests/trainer/test_ends.py",),
    ),
    Sabotage(
        name="stale-memory",
        file="frameworks/torch/adapter.py",
        old="            and [leaf.tensor.data_ptr() for leaf in static.leaves] == static.pointers\n",
        new="",
        harm="saves a walk over all leaves; after `p.data = ...` (swapping averaged weights, a change of layout) every "
        "later checkpoint holds the memory that is no longer the model",
        first=("tests/trainer", "tests/frameworks"),
    ),
    Sabotage(
        name="numpy-half-pair",
        file="frameworks/torch/rng.py",
        old="""\
            if state["has_gauss"]:
                self._raw = b""
                return _plain(state)
""",
        new="",
        harm="np.random.randn() draws in pairs; a save between the two halves of one, made after a save before the "
        "first, holds a half that was used up, and a resume draws the same number again",
        first=("tests/frameworks/test_rng.py",),
    ),
    Sabotage(
        name="damage-linked-on",
        file="persist/previous.py",
        old="            if one not in self._found:",
        new="            if one is None:",
        harm="a frozen file that was damaged on disk after the resume is hard-linked into the next checkpoints without "
        "a look: all of them are lost at once, each announced as durable",
        first=("tests/agent", "tests/persist"),
    ),
)
