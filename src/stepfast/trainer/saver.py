"""From a collected train state to the agent: a slot, the copy, the draft, and word of what became of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import xxhash

from stepfast.capture.capture import Capture
from stepfast.core.errors import AgentLost, StateNotStorable, StepfastError
from stepfast.core.protocols import Framework, TrainState
from stepfast.core.words import Cursor, StoredFile
from stepfast.store.draft import DraftEncoder
from stepfast.store.manifest import Manifest, Parent
from stepfast.store.run_directory import RunDirectory
from stepfast.store.storable import MAX_SEGMENT_BYTES, encode_loop
from stepfast.trainer import refusals
from stepfast.trainer.agent_process import AgentProcess, AgentSilent
from stepfast.trainer.record import Gradients, with_gradients, without_gradients
from stepfast.wire.channel import ChannelClosed
from stepfast.wire.messages import Committed, Failed, Message, Opened, Refused, Request, Snapshot, Span

DRAIN_DEADLINE_S = 600.0
CLOSE_DEADLINE_S = 600.0
_LEAVES_AT_ONCE = frozenset(("stopped now", "dropped"))
NUM_SLOTS = 2
SMALL_ROOM_BYTES = 1 << 20
"""Left in a slot for the loop's state and the metrics when it is made before they are known."""
MAX_AGENT_STARTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """What one save is: the state, where it stands, and why."""

    state: TrainState
    versions: Sequence[object]
    """Of the state's tensors, at the boundary."""
    copies: Mapping[str, Any]
    """Copies, made at the boundary, of the leaves that Forward writes."""
    is_late: bool
    """Forward may have run since the boundary: the copies stand in for the live leaves."""
    cursor: Cursor
    loop: Mapping[str, object]
    segments: Mapping[str, bytes | bytearray]
    full_segments: frozenset[str]
    reasons: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Tags; the first stands in the manifest."""
    finished: str | None = None
    revision: int = 0
    wanted_by: tuple[int, ...] = ()
    gradients: Gradients = field(default_factory=dict)
    """References to the gradients that `state` no longer holds itself."""


@dataclass(slots=True, kw_only=True)
class Saver:
    """Owns the agent of one run."""

    path: str
    script: str
    keep_newest: int
    framework: Framework
    facts: Mapping[str, Any]
    """Fields of every manifest: versions, hyperparameters, git commit, determinism."""
    say: Callable[[str], None]
    agent: AgentProcess
    opened: Opened
    last_durable: int | None = None
    last_durable_at: float | None = None
    k0_s: list[float] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    last_failure: StepfastError | None = None
    has_lost_a_save: bool = False
    """The agent died with a save that was not durable; the next boundary saves again."""
    _newest: SaveRequest | None = None
    """The newest save, until it is durable or has failed."""
    _capture: Capture = field(init=False)
    _drafts: DraftEncoder = field(default_factory=DraftEncoder)
    _is_prepared: bool = False
    _durable_segments: dict[str, StoredFile] = field(default_factory=dict)
    _sent_segments: dict[int, dict[str, StoredFile]] = field(default_factory=dict)
    _parent: Parent | None = None
    _starts: int = 1
    _is_silent: bool = False
    """The agent let a deadline pass: until it reads again, nothing waits for it."""
    _put_off: SaveRequest | None = None
    """The newest save, if it failed only because the agent was silent."""
    _failed_step: int = -1

    def __post_init__(self) -> None:
        self._capture = Capture(self.framework)

    @classmethod
    def open(
        cls,
        *,
        path: str,
        mode: str,
        script: str,
        keep_newest: int,
        framework: Framework,
        facts: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> Saver:
        path = os.path.abspath(path)  # the script may change its directory
        agent = AgentProcess(path=path, mode=mode, script=script, keep_newest=keep_newest)
        opened = agent.wait_opened()
        return cls(
            path=path,
            script=script,
            keep_newest=keep_newest,
            framework=framework,
            facts=facts,
            say=say,
            agent=agent,
            opened=opened,
        )

    @property
    def run(self) -> RunDirectory:
        return RunDirectory.open(self.path)

    def restored(self, manifest: Manifest, manifest_sha256: str) -> None:
        """The checkpoint that was loaded is the parent of the next one; its segments need not be sent again."""
        self._parent = {"step": manifest.step, "manifest_sha256": manifest_sha256}
        self.last_durable = manifest.step
        self._durable_segments = {f.name: f for f in manifest.files if f.name.startswith("metrics-")}

    def prepare(self, state: TrainState) -> None:
        """Have slots made ready for states like this one, so that the first save does not wait for fresh memory."""
        if self._is_prepared or self.agent.slots:
            return
        self._is_prepared = True
        try:
            self.agent.ask_for_slots(self._capture.bytes_needed(state, {}) + SMALL_ROOM_BYTES, NUM_SLOTS)
        except ChannelClosed:
            self._start_again()
        except AgentSilent as error:
            self._fell_silent(error)
        except StateNotStorable:
            return  # the save will say so

    def save(self, request: SaveRequest) -> None:
        """Copy into a slot and hand it over. Blocks for the copy, and for a slot if the agent still writes them all."""
        self._newest = request
        if self._is_silent and not self.agent.can_take_a_save():
            self._failed(request.cursor.step, AgentSilent("the agent still does not read"), aloud=False)
            self._put_off = request
        else:
            self._is_silent, self._put_off = False, None
            self._try_to_save(request)
        # From here on gradients are only referred to: the script may drop them, and their memory must go then.
        self._newest, self._put_off = _light(self._newest), _light(self._put_off)

    def poll(self) -> None:
        """Take in what the agent has to say; never waits."""
        try:
            for message in self.agent.poll():
                self._take(message)
        except ChannelClosed:
            self._start_again()
        except AgentSilent as error:
            self._fell_silent(error)

    def drain(self, *, is_at_boundary: bool) -> None:
        """Wait until every save is durable or has failed. If the agent dies meanwhile, the newest is made again as
        long as nothing was written since; at the boundary itself nothing can have been."""
        while True:
            try:
                self.agent.drain(DRAIN_DEADLINE_S, self._take)
            except ChannelClosed:
                self._start_again()
            except AgentSilent:
                self._is_silent = True
                raise
            else:
                self._is_silent = False
                self._newest, self._put_off = self._put_off, None
            if self._newest is None:
                return
            self.has_lost_a_save = False
            again = self._repeated(self._newest, is_at_boundary)
            if again is None:
                step = self._newest.cursor.step
                self._failed(step, AgentLost("the agent died before it was durable, and the state has moved on since"))
                return
            self._try_to_save(again)

    def event(self, kind: str, **fields: object) -> None:
        try:
            self.agent.event(kind, **fields)
        except ChannelClosed:
            self._start_again()
        except AgentSilent as error:
            self._fell_silent(error)
        except StateNotStorable as error:
            self.say(f"the event {kind} is not in the history: {error.message}")

    def close(self, reason: str) -> None:
        """Waits until what was sent is durable, unless somebody wants us gone now: then the agent outlives us."""
        self._capture.forget_slots()
        wait_s = 0.0 if self._is_silent or reason in _LEAVES_AT_ONCE else CLOSE_DEADLINE_S
        self.agent.close(reason, wait_s=wait_s, say=self.say)

    # ------------------------------------------------------------------ inside
    def _try_to_save(self, request: SaveRequest) -> None:
        """Once more with a new agent when the old one dies under it: the state is still that of the boundary."""
        while True:
            try:
                self._save(request)
            except ChannelClosed:
                self._start_again()
                self.has_lost_a_save = False
            except AgentSilent as error:
                self._is_silent, self._put_off = True, request
                self._failed(request.cursor.step, error)
                return
            except StepfastError as error:
                self._failed(request.cursor.step, error)
                return
            else:
                return

    def _repeated(self, request: SaveRequest, is_at_boundary: bool) -> SaveRequest | None:
        """The same save once more, if its state is still there."""
        state = with_gradients(request.state, request.gradients)
        if state is None:
            return None
        if not is_at_boundary:
            leaves, now = (*state.static, *state.dynamic), self.framework.versions(state)
            if not state.is_watched or any(
                was != is_now and leaf.name not in request.copies
                for leaf, was, is_now in zip(leaves, request.versions, now, strict=True)
            ):
                return None
        return replace(request, state=state, gradients={}, is_late=True)

    def _save(self, request: SaveRequest) -> None:
        linked = {
            name: self._durable_segments[name] for name in request.full_segments if name in self._durable_segments
        }
        small: dict[str, bytes] = {"loop.json": encode_loop(request.loop)}
        small |= {name: bytes(data) for name, data in request.segments.items() if name not in linked}
        for name, data in small.items():
            if len(data) > MAX_SEGMENT_BYTES:
                raise StateNotStorable(f"{name} has {len(data):,} bytes, more than the {MAX_SEGMENT_BYTES:,} read back")
        self.agent.take_slots()
        if not self.agent.slots or not self._capture.fits(request.state, small, self.agent.slots[0].size):
            self._capture.forget_slots()
            self.agent.reserve(self._capture.bytes_needed(request.state, small), NUM_SLOTS)
        began = time.perf_counter()
        instead = request.copies if request.is_late else {}
        self.agent.check_reads()
        number = self.agent.wait_free_slot()
        try:
            captured = self._capture.take(
                request.state, small, slot=number, memory=self.agent.slots[number].view(), instead=instead
            )
            k0_s = time.perf_counter() - began
            snapshot = Snapshot(
                slot=number,
                draft=self._drafts.encode(self._draft(request, (*captured.files, *linked.values()), k0_s)),
                spans=[Span(name=name, offset=offset, size=size) for name, offset, size in captured.spans],
                linked=sorted(linked),
                names=list(request.names[1:]),
                wanted_by=list(request.wanted_by),
            )
            self.agent.send(snapshot)
        except (AgentSilent, ChannelClosed):
            raise  # it waits in the channel, and the slot is the agent's
        except Exception:
            self.agent.give_back(number)
            raise
        self.k0_s.append(k0_s)
        self._sent_segments[request.cursor.step] = {
            name: replace(StoredFile(name=name, size=len(small[name])), digest=xxhash.xxh3_128_hexdigest(small[name]))
            for name in request.full_segments
            if name in small
        } | linked
        self._parent = None  # from here on it is the checkpoint before

    def _draft(self, request: SaveRequest, files: tuple[StoredFile, ...], k0_s: float) -> Manifest:
        return Manifest(
            run_id=self.opened.run_id,
            step=request.cursor.step,
            epoch=request.cursor.epoch,
            batch=request.cursor.batch,
            reasons=request.reasons,
            name=next(iter(request.names), None),
            finished=request.finished,
            parent=self._parent,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            files=files,
            aliases=dict(request.state.aliases),
            k0_s=k0_s,
            revision=request.revision,
            **self.facts,
        )

    def _take(self, message: Message) -> None:
        if isinstance(message, Committed):
            self.last_durable, self.last_durable_at = message.step, time.monotonic()
            self._durable_segments = self._sent_segments.pop(message.step, {})
            self._sent_segments = {s: f for s, f in self._sent_segments.items() if s > message.step}
            late = self._put_off
            if late is not None and (message.step, message.revision) >= (late.cursor.step, late.revision):
                late = self._put_off = None
            if late is None and message.step >= self._failed_step:
                self.last_failure = None
            if self._newest is not None and message.step >= self._newest.cursor.step:
                self._newest = None
        elif isinstance(message, Failed):
            self._failed(message.step, refusals.as_error(message))
        elif isinstance(message, Request):
            self.requests.append(message)
        elif isinstance(message, Refused):
            raise refusals.as_error(message)

    def _fell_silent(self, error: AgentSilent) -> None:
        if not self._is_silent:
            self.say(f"{error.message}. Training goes on; nothing is saved until it reads again")
        self._is_silent = True

    def _failed(self, step: int, error: StepfastError, *, aloud: bool = True) -> None:
        self._durable_segments = {}  # the next save brings all bytes: one of those that were shared may be damaged
        self.last_failure, self._failed_step = error, max(step, self._failed_step)
        if self._newest is not None and step >= self._newest.cursor.step:
            self._newest = None
        if not aloud:
            return
        hint = f" {error.hint[0].upper()}{error.hint[1:]}." if error.hint else ""
        self.say(f"the save of step {step:,} failed: {error.message}. Training goes on.{hint}")

    def _start_again(self) -> None:
        """The agent died: say so, start another. What was not on disk yet is lost with it."""
        how = self.agent.how_it_died()
        self._capture.forget_slots()
        self._is_silent = False
        for message in self.agent.take_kept():
            self._take(message)
        self.agent.discard()
        if self._put_off is not None:
            self._newest, self._put_off = self._put_off, None
        if self._starts >= MAX_AGENT_STARTS:
            raise AgentLost(
                f"the agent died {self._starts} times ({how}); no checkpoint can be written any more",
                hint=f"agent.log in {self.path} says why; start again to go on from the last checkpoint",
            )
        self._starts += 1
        self.has_lost_a_save = self._newest is not None
        durable = "nothing" if self.last_durable is None else f"step {self.last_durable:,}"
        self.say(f"the agent died ({how}); a new one is started. Durable: {durable}")
        self.agent = AgentProcess(path=self.path, mode="auto", script=self.script, keep_newest=self.keep_newest)
        self.opened = self.agent.wait_opened()


def _light(request: SaveRequest | None) -> SaveRequest | None:
    if request is None or request.gradients:
        return request
    state, gradients = without_gradients(request.state)
    return replace(request, state=state, gradients=gradients) if gradients else request
