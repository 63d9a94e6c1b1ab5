"""The picture of a run that was killed and resumed: two sessions, batch by batch, as an SVG.

One pure function from numbers to text. It knows nothing of a run directory.
The picture needs no script and no font file, follows the reader's light or dark setting, and says everything
in words and patterns too, so that it can be read without colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from stepfast.report import lines

WIDTH = 840
_LEFT, _RIGHT = 24, 816
_BAR_HEIGHT = 58
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"

_STYLE = """
text { font-family: %s; font-size: 15px; fill: #1c2430; }
.title { font-size: 21px; font-weight: 700; }
.row { font-size: 16px; font-weight: 700; }
.sum { font-size: 25px; font-weight: 700; }
.quiet { fill: #566173; font-size: 14px; }
.page { fill: #ffffff; }
.over { paint-order: stroke; stroke: #ffffff; stroke-width: 6px; stroke-linejoin: round; }
.first { fill: #1f5fbf; } .on-first { fill: #ffffff; font-weight: 600; }
.again { fill: #f0b23c; } .on-again { fill: #2a1c00; font-weight: 600; } .again-text { fill: #8a5800; }
.empty { fill: #eef1f5; stroke: #9aa5b4; stroke-width: 1.5; stroke-dasharray: 5 4; }
.on-empty { fill: #434d5c; }
.stripe { stroke: #0d3f87; stroke-width: 5; } .again-stripe { stroke: #d6941b; stroke-width: 2; }
.guide { stroke: #9aa5b4; stroke-width: 1; stroke-dasharray: 2 4; }
.rule { stroke: #d5dae1; stroke-width: 1; }
.kept { fill: #1b7a43; } .kill { stroke: #c22f2f; stroke-width: 4; stroke-linecap: round; fill: none; }
.kill-text { fill: #b02525; font-weight: 600; } .kept-text { fill: #17693a; font-weight: 600; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e9f0; }
.quiet { fill: #9fabbc; }
.page { fill: #12171f; }
.over { stroke: #12171f; }
.first { fill: #5b9bff; } .on-first { fill: #051226; }
.again { fill: #e0a030; } .on-again { fill: #1f1400; } .again-text { fill: #f0b95a; }
.empty { fill: #1c2430; stroke: #66728a; } .on-empty { fill: #b4bfce; }
.stripe { stroke: #8ab8ff; } .again-stripe { stroke: #f3c266; }
.guide { stroke: #5a667a; }
.rule { stroke: #2c3644; }
.kept { fill: #4fc383; } .kill { stroke: #ff6b6b; }
.kill-text { fill: #ff8585; } .kept-text { fill: #62cf93; }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What the picture shows. Numbers count batches from 0 to `total`.

    `checkpoint` is the first batch that is not in the checkpoint the second session resumed from, `crash` the
    first one that was not finished when the first session died, `later` the checkpoints of
    session 2.
    """

    total: int
    checkpoint: int
    crash: int
    seconds_a_batch: float
    later: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.checkpoint <= self.crash <= self.total or self.total == 0:
            raise ValueError(f"no such run: checkpoint {self.checkpoint}, crash {self.crash}, {self.total} batches")
        if self.seconds_a_batch <= 0:
            raise ValueError(f"seconds_a_batch is {self.seconds_a_batch}; it must be above 0")

    @property
    def again(self) -> int:
        """How many batches the second session computed again."""
        return self.crash - self.checkpoint

    @property
    def new(self) -> int:
        return self.total - self.crash

    def minutes(self, num_batches: int) -> str:
        return lines.minutes(num_batches * self.seconds_a_batch)


THE_CASE = Timeline(total=1270, checkpoint=500, crash=900, seconds_a_batch=3.22, later=(1000, 1270))
"""The case that the demo plays: 20,305 samples, batch 16, a checkpoint every 500, killed at batch 900."""

THE_CASE_NOTE = (
    "Every figure is a number of batches × 3.22 s, rounded. The document that describes this case counts 899 "
    "finished batches in session 1 and cuts some decimals off; there the same figures read 48.2, 21.4, 89.5 "
    "and 68.1 min."
)


def draw_timeline(timeline: Timeline, *, verdict: str = "", notes: Iterable[str] = ()) -> str:
    """The two sessions as one SVG document.

    Args:
        timeline: The numbers.
        verdict: One sentence under the sums, for example that the two models are equal; passed by whoever
            has shown it.
        notes: Small print at the foot; each is wrapped.
    """
    t = timeline
    body: list[str] = []
    _text(
        body,
        _LEFT,
        38,
        f"Killed at batch {lines.count(t.crash)}, resumed at {lines.count(t.checkpoint)}",
        "title",
    )
    _text(
        body,
        _LEFT,
        62,
        f"{lines.counted(t.total, 'batch', 'batches')}, {t.seconds_a_batch:g} s each",
        "quiet",
    )

    first_bar, second_bar = 112, 266
    _guides(body, t, first_bar, second_bar + _BAR_HEIGHT)

    finished = f"{lines.counted(t.crash, 'batch', 'batches')} finished · {t.minutes(t.crash)}"
    _heading(body, first_bar, "Session 1", finished)
    _segment(body, t, first_bar, 0, t.checkpoint, "first", "{n} in the checkpoint", t.minutes(t.checkpoint))
    _segment(body, t, first_bar, t.checkpoint, t.crash, "first striped", "{n} in memory only", t.minutes(t.again))
    _segment(body, t, first_bar, t.crash, t.total, "empty", "not reached", "")
    _session_1_marks(body, t, first_bar + _BAR_HEIGHT)

    computed = f"{lines.count(t.again + t.new)} of {lines.count(t.total)} computed · {t.minutes(t.again + t.new)}"
    _heading(body, second_bar, "Session 2", computed)
    _segment(body, t, second_bar, 0, t.checkpoint, "empty", "{n} skipped", "0 min")
    _segment(body, t, second_bar, t.checkpoint, t.crash, "again", "{n} computed again", t.minutes(t.again))
    _segment(body, t, second_bar, t.crash, t.total, "first", "{n} new", t.minutes(t.new))
    _resume_mark(body, t, second_bar)
    _ticks(body, t, second_bar + _BAR_HEIGHT)

    foot = _sums(body, t, second_bar + _BAR_HEIGHT + 76)
    if verdict:
        foot += 36
        for line in _wrap(verdict, 84):
            _text(body, _LEFT, foot, line, "kept-text")
            foot += 22
        foot -= 22
    foot += 30 if notes else 0
    for note in notes:
        for line in _wrap(note, 104):
            _text(body, _LEFT, foot, line, "quiet")
            foot += 19
    height = foot + 14

    title = (
        f"Session 1 finished {t.crash} batches and was killed; session 2 skipped {t.checkpoint}, "
        f"computed {t.again} again and {t.new} for the first time."
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE % _FONT}</style>",
            _STRIPES,
            f'<rect class="page" width="{WIDTH}" height="{height}" rx="10"/>',
            *body,
            "</svg>",
            "",
        ]
    )


_STRIPES = (
    '<defs><pattern id="stripes" width="12" height="12" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line class="stripe" x1="3" y1="0" x2="3" y2="12"/></pattern>'
    '<pattern id="again-stripes" width="9" height="9" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(-45)"><line class="again-stripe" x1="2" y1="0" x2="2" y2="9"/></pattern></defs>'
)


def _x(timeline: Timeline, batch: int) -> float:
    return round(_LEFT + (_RIGHT - _LEFT) * batch / timeline.total, 1)


def _text(body: list[str], x: float, y: float, words: str, style: str = "", anchor: str = "start") -> None:
    escaped = escape(words, quote=False)
    body.append(f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escaped}</text>')


def _heading(body: list[str], bar: float, name: str, facts: str) -> None:
    _text(body, _LEFT, bar - 12, name, "row")
    _text(body, _RIGHT, bar - 12, facts, "over", "end")


def _segment(
    body: list[str], t: Timeline, bar: float, begin: int, end: int, style: str, words: str, below: str
) -> None:
    """One part of a bar with its words in it; words that do not fit are left out: the heading has the sum."""
    if begin == end:
        return
    left, right = _x(t, begin), _x(t, end)
    box = f'x="{left + 1:g}" y="{bar:g}" width="{max(right - left - 2, 1):g}" height="{_BAR_HEIGHT}" rx="4"'
    kind, _, extra = style.partition(" ")
    body.append(f'<rect class="{kind}" {box}/>')
    if extra:
        body.append(f'<rect fill="url(#stripes)" {box}/>')
    elif kind == "again":
        body.append(f'<rect fill="url(#again-stripes)" {box}/>')
    words = words.format(n=lines.count(end - begin))
    if len(words) * 8.6 > right - left:
        return
    middle = (left + right) / 2
    if extra or kind == "again":
        # Letters on stripes are hard to read: a plain patch of the bar's own colour goes behind them.
        patch_width = len(words) * 9 + 16
        body.append(
            f'<rect class="{kind}" x="{middle - patch_width / 2:g}" y="{bar + 7:g}" '
            f'width="{min(patch_width, right - left - 2):g}" height="{_BAR_HEIGHT - 14}" rx="4"/>'
        )
    _text(body, middle, bar + (27 if below else 35), words, f"on-{kind}", "middle")
    if below:
        _text(body, middle, bar + 46, below, f"on-{kind}", "middle")


def _guides(body: list[str], t: Timeline, top: float, bottom: float) -> None:
    for batch in {t.checkpoint, t.crash} - {0, t.total}:
        x = _x(t, batch)
        body.append(f'<line class="guide" x1="{x:g}" y1="{top:g}" x2="{x:g}" y2="{bottom + 24:g}"/>')


def _anchored(x: float, words: str) -> tuple[float, str]:
    """Where words centred under a mark go, so that none runs over the edge of the picture."""
    half = len(words) * 4.4
    if x - half < _LEFT:
        return _LEFT, "start"
    if x + half > _RIGHT:
        return _RIGHT, "end"
    return x, "middle"


def _session_1_marks(body: list[str], t: Timeline, y: float) -> None:
    saved, killed = _x(t, t.checkpoint), _x(t, t.crash)
    words = f"kill -9 when batch {lines.count(t.crash)} is asked for"
    body.append(f'<path class="kill" d="M{killed - 6:g} {y + 7:g} l12 12 m0 -12 l-12 12"/>')
    x, anchor = _anchored(killed, words)
    _text(body, x, y + 38, words, "kill-text over", anchor)
    if not t.checkpoint:
        return
    _diamond(body, saved, y)
    words = f"checkpoint: batches 0–{lines.count(t.checkpoint - 1)}"
    # Its words end at the mark, so that those of the kill have room.
    _text(body, max(saved + 9, _LEFT + 190), y + 38, words, "kept-text over", "end")


def _diamond(body: list[str], x: float, y: float) -> None:
    body.append(f'<path class="kept" d="M{x:g} {y + 4:g} l9 9 l-9 9 l-9 -9 z"/>')


def _resume_mark(body: list[str], t: Timeline, bar: float) -> None:
    x = _x(t, t.checkpoint)
    body.append(f'<path class="kept" d="M{x - 5:g} {bar - 20:g} l11 7 l-11 7 z"/>')
    words = f"resume at {lines.count(t.checkpoint)}"
    if x - len(words) * 8.6 > _LEFT + 96:
        _text(body, x - 12, bar - 12, words, "kept-text", "end")


def _ticks(body: list[str], t: Timeline, y: float) -> None:
    for batch in t.later:
        _diamond(body, min(_x(t, batch), _RIGHT - 9), y)
    shown: list[float] = []
    # The two moments the picture is about come first; an end that has no room beside them is left out.
    for batch in dict.fromkeys((t.checkpoint, t.crash, 0, t.total, *t.later)):
        x = _x(t, batch)
        if any(abs(x - other) < 44 for other in shown):
            continue
        shown.append(x)
        anchor = "start" if batch == 0 else "end" if batch == t.total else "middle"
        _text(body, x, y + 40, f"{'batch ' if batch == 0 else ''}{lines.count(batch)}", "quiet", anchor)


def _sums(body: list[str], t: Timeline, y: float) -> float:
    body.append(f'<line class="rule" x1="{_LEFT}" y1="{y - 14:g}" x2="{_RIGHT}" y2="{y - 14:g}"/>')
    more = lines.percent(t.again, t.total)
    columns = (
        (t.minutes(t.crash + t.again + t.new), "both sessions", "sum"),
        (t.minutes(t.total), "without the kill", "sum"),
        (f"{t.minutes(t.again)} ({more})", "more: what was computed again", "sum again-text"),
    )
    for k, (figure, words, style) in enumerate(columns):
        x = (_LEFT, 250, 470)[k]
        _text(body, x, y + 20, figure, style)
        _text(body, x, y + 43, words, "quiet")
    return y + 43


def _wrap(words: str, num_letters: int) -> list[str]:
    wrapped: list[str] = [""]
    for word in words.split():
        if wrapped[-1] and len(wrapped[-1]) + 1 + len(word) > num_letters:
            wrapped.append("")
        wrapped[-1] += (" " if wrapped[-1] else "") + word
    return wrapped
