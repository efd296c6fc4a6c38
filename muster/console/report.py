"""Writes a group's map, timeline and reasons as one HTML file that works without a network.

The file has the first record as a frame and every later one as a delta, deflated: 10,000 tasks and
1,000 generations take a few hundred kB. If the data is longer than `BYTES_MAX`, the report leaves
out the records within generations, then the oldest generations; the page says so. It says too how
many records are older than those that a history keeps.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from muster.console.explanations import Explainer, Loads, generation_json
from muster.console.frames import Frame, Json, delta, frame, task_text, text
from muster.console.history import MOMENTS_MAX, History, Moment
from muster.console.plans import Question, plan_json
from muster.console.store import GroupKey, Store
from muster.errors import BadInput, NotFound
from muster.kafka.compacted import in_time_order
from muster.kafka.reader import Row
from muster.output import utc
from muster.protocol.records import GroupSnapshot, Move

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
TEMPLATES = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
BYTES_MAX = 4_500_000
"""Most bytes of deflated and encoded data."""
MOVES_MAX = 300
"""Most moves listed of one generation."""
SENTENCES_MAX = 40
"""Most tasks of one moment for which the file has a sentence."""
NOTES_MAX = 12
SCRIPTS = (
    "dom.js",
    "state.js",
    "pen.js",
    "map.js",
    "timeline.js",
    "tabs.js",
    "panels.js",
    "report.js",
)


class _TextNumbers(dict[str, int]):
    """Texts and their numbers, in this order: names and reasons repeat thousands of times."""

    def number(self, text: str | None) -> int:
        """The number of a text; -1 = none."""
        return -1 if text is None else self.setdefault(text, len(self))


def history_of(
    rows: Iterable[Row], prefix: str, group: str, until_ms: int | None = None
) -> History:
    """The history of one group from rows of any topics, up to `until_ms` (epoch milliseconds).

    Raises:
        NotFound: the rows have no record of the group.
    """
    store = Store([prefix])
    for row in in_time_order(rows):
        if row.topic == f"{prefix}.groups" and (until_ms is None or row.at_ms <= until_ms):
            store.read(row)
    history = store.history(GroupKey(prefix, group))
    if history is None or not history.moments:
        span = "" if until_ms is None else f" that is older than {utc(until_ms)}"
        raise NotFound(f"no record of group {group!r} on {prefix}.groups{span}")
    return history


def older_left_out(history: History, since_ms: int) -> str:
    """A sentence about records since `since_ms` that the history has dropped; empty = none."""
    first = history.moments[0]
    if not first.number or first.at_ms <= since_ms:
        return ""
    return (
        f"{first.number:,} older records are left out, because a report has at most "
        f"{MOMENTS_MAX:,}: this one begins at {utc(first.at_ms)}. "
        "`muster report --since SPAN --until SPAN` shows the records of another time."
    )


def report_html(
    history: History, *, since_ms: int, made_ms: int, source: str, end_ms: int | None = None
) -> str:
    """The report of a group.

    Args:
        history: its records.
        since_ms: epoch milliseconds; older records are left out, except the newest of them, which
            shows the group at that time.
        made_ms: when the report is made, epoch milliseconds.
        source: where the records come from, for people.
        end_ms: time without an owner that has not ended counts up to then; None = `made_ms`.
    """
    end_ms = made_ms if end_ms is None else end_ms
    moments = list(history.moments)
    begin = max((n for n, m in enumerate(moments) if m.at_ms <= since_ms), default=0)
    chosen, left_out = moments[begin:], older_left_out(history, since_ms)
    data = _packed(_data(history, chosen, made_ms, end_ms))
    if len(data) > BYTES_MAX:
        chosen = _ends(chosen)
        thinned = "Records within generations are left out; the first and the last are here."
        left_out = f"{left_out} {thinned}".strip()
        data = _packed(_data(history, chosen, made_ms, end_ms))
    while len(data) > BYTES_MAX and len(chosen) > 2:
        chosen = chosen[len(chosen) // 3 :]
        left_out = (
            f"The file would be too large: it begins with generation {chosen[0].generation}. "
            "`muster report --since SPAN --until SPAN` shows the records of another time."
        )
        data = _packed(_data(history, chosen, made_ms, end_ms))
    return _page(
        title=text(history.group), kind="report", data=data, source=source, left_out=left_out
    )


def plan_html(
    snapshot: GroupSnapshot,
    asked: Question,
    *,
    at_ms: int,
    source: str,
    where: Sequence[str] = (),
) -> str:
    """A plan as one file: the map with what would move, figures, reasons and commands.

    `at_ms` is when the plan is made, `source` says to people where the group comes from, and
    `where` are the connection's options, for the commands.

    Raises:
        BadInput, ConfigError, NotFound, AssignorError: as `whatif.planned`.
    """
    plan = plan_json(snapshot, asked, at_ms, where=where)
    data = _packed({"plan": plan, "base": plan.pop("frame"), "made_ms": at_ms})
    title = f"{text(snapshot.group)}: what if"
    return _page(title=title, kind="plan", data=data, source=source, left_out="")


def write_html(path: str, html: str) -> str:
    """Write the file; return a line for the user.

    Raises:
        BadInput: it cannot be written.
    """
    try:
        Path(path).write_text(html, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from None
    return f"{path}: {len(html.encode()) / 1000:.0f} kB; open it in a browser"


def _ends(moments: Sequence[Moment]) -> list[Moment]:
    """The first and the last moment of each generation."""
    ends: list[Moment] = []
    for _, of_generation in groupby(moments, key=lambda moment: moment.generation):
        first, *later = of_generation
        ends += [first, *later[-1:]]
    return ends


def _data(history: History, moments: Sequence[Moment], made_ms: int, end_ms: int) -> Json:
    """What the page's script reads.

    Moments are numbered by their place, because the timeline expects numbers without gaps.
    """
    numbers = [moment.number for moment in moments]
    texts = _TextNumbers()
    base: Frame | None = None
    before: Frame | None = None
    steps: list[Json] = []
    snapshots: dict[int, GroupSnapshot] = {}
    for place, moment in enumerate(moments):
        snapshot = history.snapshot(moment)
        snapshots[moment.generation] = snapshot
        made = frame(history, moment, snapshot)
        base = base or made
        step: Json = {"m": [place, moment.at_ms, moment.generation]}
        if before is not None:
            step["d"] = delta(before, made)
        step |= _explained(moment, snapshot, texts)
        steps.append(step)
        before = made
    assert base is not None
    kept = [g for g in list(history.generations) if g.last >= moments[0].number]
    rows = []
    earlier: GroupSnapshot | None = None
    for each in kept:
        after = snapshots.get(each.generation)
        row: Json = {
            **generation_json(each, end_ms),
            "first": bisect_left(numbers, each.first),
            "last": bisect_right(numbers, each.last) - 1,
            "shown": [],
            "left_out": 0,
        }
        if after is not None:
            loads = Loads(earlier, after)
            row["shown"] = [_move(m, loads, texts) for m in after.moves[:MOVES_MAX]]
            row["left_out"] = max(len(after.moves) - MOVES_MAX, 0)
            earlier = after
        rows.append(row)
    return {
        "base": base.whole,
        "steps": steps,
        "rounds": rows,
        "texts": list(texts),
        "made_ms": made_ms,
    }


def _explained(moment: Moment, snapshot: GroupSnapshot, texts: _TextNumbers) -> Json:
    """The group's notes at a moment, and a sentence for each task that is not settled."""
    why = Explainer(snapshot, moment.pending, moment.at_ms)
    unsettled = why.unsettled(SENTENCES_MAX)
    explained: Json = {}
    if unsettled:
        explained["s"] = [[task, texts.number(why.sentence(task))] for task in unsettled]
    notes = why.notes()[:NOTES_MAX]
    if notes:
        explained["n"] = [
            [note["level"], texts.number(note["text"]), note.get("task")] for note in notes
        ]
    return explained


def _move(move: Move, loads: Loads, texts: _TextNumbers) -> list[Any]:
    """[task, role, from, to, reason, loads of from, loads of to]; texts by number."""
    return [
        task_text(move.task),
        str(move.role),
        texts.number(None if move.from_member is None else text(move.from_member)),
        texts.number(None if move.to_member is None else text(move.to_member)),
        texts.number(text(move.reason, 400)),
        loads.of(move.from_member),
        loads.of(move.to_member),
    ]


def _packed(data: Json) -> str:
    plain = json.dumps(data, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(plain, 9)).decode()


def _page(*, title: str, kind: str, data: str, source: str, left_out: str) -> str:
    style = (STATIC / "muster.css").read_text(encoding="utf-8")
    script = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return TEMPLATES.get_template("report.html").render(
        title=title,
        kind=kind,
        data=data,
        source=source,
        left_out=left_out,
        policy=policy,
        style=Markup(style),  # noqa: S704  our own file
        script=Markup(script),  # noqa: S704  our own files
    )


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
