"""The overlap checker: it finds tasks that two members run at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.worker.overlap import FOREVER, lines, overlaps, tenures


def line(at_ns: int, what: str, member: str, task: str = "t_0") -> dict:
    """A log line of a member; its pid is the number in its name."""
    pid = int(member[1:])
    return {
        "at_ns": at_ns,
        "what": what,
        "task": task,
        "member": member,
        "pid": pid,
        "epoch": 1,
        "generation": 1,
    }


def test_one_after_another_is_fine() -> None:
    """A handover without a gap, a restart and the death of an owner are not overlaps."""
    read_tenures = tenures(
        [
            line(1, "start", "W1"),
            line(5, "stop", "W1"),
            line(5, "start", "W2"),
            {"at_ns": 9, "what": "died", "pid": 2},
            line(9, "start", "W1"),
        ]
    )
    assert [(t.member, t.start_ns, t.stop_ns) for t in read_tenures] == [
        ("W1", 1, 5),
        ("W2", 5, 9),
        ("W1", 9, FOREVER),
    ]
    assert overlaps(read_tenures) == []


@pytest.mark.parametrize(
    "logged",
    [
        [line(1, "start", "W1"), line(4, "start", "W2"), line(5, "stop", "W1")],
        [line(1, "start", "W1"), line(4, "start", "W2"), line(6, "stop", "W2")],
        [
            *(line(1, "start", "W1"), line(2, "start", "W2"), line(3, "stop", "W2")),
            *(line(4, "start", "W3"), line(9, "stop", "W1")),
        ],
    ],
)
def test_two_at_once_is_found(logged: list[dict]) -> None:
    """Overlaps are found: by one nanosecond, with an endless owner, around a short owner."""
    assert overlaps(tenures(logged))


def test_a_log_that_contradicts_itself_fails() -> None:
    """A log in which a task starts twice, or stops without a start, raises an error."""
    with pytest.raises(AssertionError, match="started twice"):
        tenures([line(1, "start", "W1"), line(2, "start", "W1")])
    with pytest.raises(AssertionError, match="never started"):
        tenures([line(1, "stop", "W1")])


def test_logs_of_the_worker_command(tmp_path: Path) -> None:
    """The checker reads ``muster worker --log`` and the other log form, and skips cut lines."""
    rest = '"task": "t_0", "role": "active", "incarnation": 7, "generation": 3, "epoch": 2'
    (tmp_path / "W1.jsonl").write_text(
        f'{{"event": "start", {rest}, "member": "W1", "at_ms": 0, "boottime_ms": 1}}\n'
        f'{{"event": "stop", {rest}, "member": "W1", "at_ms": 0, "boottime_ms": 5}}\n'
        '{"event": "sta'
    )
    (tmp_path / "W2.jsonl").write_text(
        '{"at_ns": 4999999, "what": "start", "task": "t_0", "member": "W2", "pid": 9, "epoch": 4,'
        ' "generation": 4}\n'
    )
    read_tenures = tenures(lines(tmp_path))
    assert [(t.member, t.pid, t.epoch, t.start_ns, t.stop_ns) for t in read_tenures] == [
        ("W1", 7, 2, 1_000_000, 5_000_000),
        ("W2", 9, 4, 4_999_999, FOREVER),
    ]
    assert len(overlaps(read_tenures)) == 1
