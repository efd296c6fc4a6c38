"""Reports and plans as one file: complete, self-contained, small."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.console.played import PREFIX, demo_life, play, with_records_within
from support.state.snapshots import orders

from muster.cli.main import main
from muster.console import history as kept
from muster.console import report
from muster.console.frames import frame
from muster.console.history import History
from muster.console.plans import Question
from muster.console.report import plan_html, report_html
from muster.console.store import GroupKey, Store
from muster.kafka.reader import Row
from muster.protocol.codec import encode
from muster.protocol.ids import MemberId, Role
from muster.protocol.records import GroupSnapshot, MemberEntry, Move
from muster.protocol.tasks import Subtopology
from muster.replay.saved_records import save

NONE_FROM_OUTSIDE = re.compile(
    r"""(?:src|href|action)\s*=\s*["'](?!data:|#)|@import|url\((?!data:)"""
)


def history_of(life: dict[str, Any]) -> History:
    """The history of a life."""
    store = Store([PREFIX])
    play(store, life)
    history = store.history(GroupKey(PREFIX, "g"))
    assert history is not None
    return history


def data_of(html: str) -> dict[str, Any]:
    """What the page's script reads."""
    packed = re.search(r'id="data">([\w+/=]+)</script>', html)
    assert packed is not None
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


def test_it_has_every_record_and_needs_nothing_else() -> None:
    """Base and deltas lead to the last record; no file, script or picture comes from outside."""
    history = history_of(demo_life())
    html = report_html(history, since_ms=0, made_ms=5, source="here")
    data = data_of(html)
    assert [step["m"][2] for step in data["steps"]] == [m.generation for m in history.moments]
    assert [r["cause"] for r in data["rounds"]] == [r.cause for r in history.generations]
    owners = {task: row for task, *row in data["base"]["tasks"]}
    for step in data["steps"][1:]:
        if step["d"].get("whole"):
            owners = {}
        owners |= {task: row for task, *row in step["d"].get("tasks", [])}
    last = frame(history, history.moments[-1], history.snapshot(history.moments[-1]))
    assert [owners[task] for task in range(12)] == last.rows.tolist()
    assert NONE_FROM_OUTSIDE.search(html) is None
    assert "'unsafe-inline'" not in html


def test_moves_keep_their_reasons() -> None:
    """The generation in which W4 joined: from whom to whom, and why."""
    data = data_of(report_html(history_of(demo_life()), since_ms=0, made_ms=5, source=""))
    joined = next(r for r in data["rounds"] if r["cause"] == "W4 joined")
    moves = [
        (task, data["texts"][a], data["texts"][b], data["texts"][reason])
        for task, _, a, b, reason, *_ in joined["shown"]
    ]
    assert moves[0] == ("0_9", "W1", "W4", "balance 4/0 -> 3/3")


def test_since_begins_with_the_group_as_it_was_then() -> None:
    """Records from before are left out, except the newest of them."""
    history = history_of(demo_life())
    third = next(m for m in history.moments if m.generation == 3)
    html = report_html(history, since_ms=third.at_ms + 1_000, made_ms=5, source="")
    assert [step["m"][2] for step in data_of(html)["steps"]] == [3, 4]


def test_a_report_of_a_saved_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`muster replay --save` and `muster report --file`: no Kafka is needed."""
    history = history_of(demo_life())
    saved, out = tmp_path / "g.jsonl", tmp_path / "report.html"
    save(str(saved), _rows(history))
    common = ["report", "--group", "g", "--file", str(saved), "-o", str(out)]
    assert main(common) == 0
    assert capsys.readouterr().out.startswith(f"{out}: ")
    assert len(data_of(out.read_text())["steps"]) == len(history.moments)
    assert main([*common, "--since", "60s"]) == 0
    assert len(data_of(out.read_text())["steps"]) == 4
    assert main(["report", "--group", "x", "--file", str(saved), "-o", str(out)]) == 1
    assert "no record of group 'x'" in capsys.readouterr().err
    assert main([*common[:-1], str(tmp_path / "no" / "r.html")]) == 2


def test_a_clock_that_went_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A generation with an earlier timestamp than the one before it is in the report."""
    saved, out = tmp_path / "g.jsonl", tmp_path / "report.html"
    rows = [*_rows(history_of(demo_life()))]
    rows[-1] = rows[-1]._replace(at_ms=rows[0].at_ms)
    save(str(saved), rows)
    common = ["report", "--group", "g", "--file", str(saved), "-o", str(out)]
    assert main(common) == 0
    assert len(data_of(out.read_text())["steps"]) == len(rows)
    assert main([*common, "--until", "999999d"]) == 1
    told = "no record of group 'g' on muster.groups that is older than 1970-01-01T00:00:00Z\n"
    assert capsys.readouterr().err == f"muster report: {told}"


def _rows(history: History) -> Iterable[Row]:
    for moment in history.moments:
        yield Row(b"g", moment.value, "muster.groups", 0, moment.number, moment.at_ms)


def test_a_span_must_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    """`--since` names a number and a unit."""
    with pytest.raises(SystemExit):
        main(["report", "--group", "g", "-o", "x", "--since", "yesterday"])
    assert "expected a span such as" in capsys.readouterr().err


def test_a_report_that_is_too_large_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """First the records within generations go, then the oldest generations; the page says it."""
    history = history_of(demo_life())
    whole = len(report_html(history, since_ms=0, made_ms=5, source=""))
    monkeypatch.setattr(report, "BYTES_MAX", 1_000)
    html = report_html(history, since_ms=0, made_ms=5, source="")
    assert len(html) < whole
    assert "The file would be too large: it begins with generation" in html


def test_moments_have_numbers_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the records within generations: the timeline finds each step and each bar's ends."""
    history = with_records_within(history_of(demo_life()))
    parts = data_of(report_html(history, since_ms=0, made_ms=5, source=""))
    fits = len(report._packed(parts)) - 1
    monkeypatch.setattr(report, "BYTES_MAX", fits)
    html = report_html(history, since_ms=0, made_ms=5, source="")
    assert "Records within generations are left out" in html
    data = data_of(html)
    assert len(data["steps"]) < len(parts["steps"])
    assert [step["m"][0] for step in data["steps"]] == [*range(len(data["steps"]))]
    generations = [step["m"][2] for step in data["steps"]]
    for each in data["rounds"]:
        ends = (generations.index(each["generation"]), generations[::-1].index(each["generation"]))
        assert (each["first"], each["last"]) == (ends[0], len(generations) - 1 - ends[1])


def test_records_that_do_not_fit_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Command and file say how many older records are missing; another time can be chosen."""
    whole = history_of(demo_life())
    times = [moment.at_ms for moment in whole.moments]
    saved, out = tmp_path / "g.jsonl", tmp_path / "report.html"
    save(str(saved), _rows(whole))
    monkeypatch.setattr(kept, "MOMENTS_MAX", 4)
    monkeypatch.setattr(report, "MOMENTS_MAX", 4)
    common = ["report", "--group", "g", "--file", str(saved), "-o", str(out)]
    assert main(common) == 0
    said = f"{len(times) - 4} older records are left out, because a report has at most 4"
    assert said in capsys.readouterr().err
    assert said in out.read_text()
    second = (times[-1] - times[2]) // 1_000
    assert main([*common, "--until", f"{second}s"]) == 0
    assert capsys.readouterr().err == ""
    assert [step["m"][1] for step in data_of(out.read_text())["steps"]] == times[:4]
    assert main([*common, "--until", "2h", "--since", "1h"]) == 2
    assert "--until: expected a shorter span than --since" in capsys.readouterr().err
    assert main([*common, "--until", "9d"]) == 1
    assert "no record of group 'g' on muster.groups that is older than" in capsys.readouterr().err


def test_time_without_an_owner_ends_with_the_file(tmp_path: Path) -> None:
    """A file that was saved long ago: what had not ended then does not count up to now."""
    life = {**demo_life(), "events": [*demo_life()["events"][:3], {"at_ms": 5_000, "crash": "W1"},
            {"at_ms": 5_000, "crash": "W2"}, {"at_ms": 5_000, "crash": "W3"}]}  # fmt: skip
    history = history_of(life)
    assert history.generations[-1].ownerless == 12
    saved, out = tmp_path / "g.jsonl", tmp_path / "report.html"
    save(str(saved), _rows(history))
    assert main(["report", "--group", "g", "--file", str(saved), "-o", str(out)]) == 0
    last = history.generations[-1]
    ended = last.ownerless_until(history.moments[-1].at_ms)
    assert data_of(out.read_text())["rounds"][-1]["ownerless_ms"] == ended


def large(generation: int, random: np.random.Generator, holder: np.ndarray) -> GroupSnapshot:
    """A group of 200 members and 10,000 tasks, ten of which have moved."""
    members = tuple(
        MemberEntry(id=MemberId(f"worker-{s:04}"), slot=s, incarnation=s, rack=f"r{s % 3}")
        for s in range(200)
    )
    moves = []
    for task in random.integers(0, len(holder), 10).tolist():
        to = int(random.integers(0, 200))
        moves.append(
            Move(
                task=f"0_{task}",
                role=Role.ACTIVE,
                from_member=f"worker-{holder[task]:04}",
                to_member=f"worker-{to:04}",
                reason=f"balance {task % 12}/9 -> 10/10",
            )
        )
        holder[task] = to
    none = np.empty((0, 2), dtype=np.int32)
    return replace(
        orders(generation, cause=f"worker-{generation % 1_000:04} joined"),
        tasks=(Subtopology("0", len(holder)),),
        members=members,
        target=holder.copy(),
        holder=holder.copy(),
        destination=holder.copy(),
        revoking=np.zeros(len(holder), dtype=np.bool_),
        **dict.fromkeys(("target_standby", "standby", "standby_revoking"), none),
        **dict.fromkeys(("target_learner", "learner"), none),
        lags=np.empty((0, 3), dtype=np.int64),
        lag_ms=np.empty(0, dtype=np.int64),
        moves=tuple(moves),
    )


@pytest.mark.slow
def test_ten_thousand_tasks_and_a_thousand_generations_fit() -> None:
    """The file stays below 5 MB, with every generation in it."""
    random, holder = np.random.default_rng(1), np.arange(10_000, dtype=np.int32) % 200
    history = History("orders")
    for generation in range(1, 1_001):
        record = large(generation, random, holder)
        history.take(record, generation * 1_000, encode(record).value or b"")
    html = report_html(history, since_ms=0, made_ms=5, source="")
    assert len(html) < 5_000_000
    assert len(data_of(html)["steps"]) == 1_000


def test_a_plan_as_a_file() -> None:
    """Its figures, reasons, commands and the map with what would move; also with other tasks."""
    snapshot = history_of({**demo_life(), "until_ms": 15_000}).newest
    assert snapshot is not None
    data = data_of(plan_html(snapshot, Question(remove=("W2",)), at_ms=5, source=""))
    assert data["plan"]["count"] == 3
    assert data["plan"]["commands"][0] == "muster plan --group g --remove-member W2"
    assert sum(row[4] for row in data["base"]["tasks"]) == 3
    more = Question(tasks=[{"subtopology": "0", "partitions": 14}])
    grown = data_of(plan_html(snapshot, more, at_ms=5, source=""))
    assert [row[1] for row in grown["base"]["tasks"]][12:] == [-1, -1]
    assert grown["base"]["head"]["units"][0][1] == 14
