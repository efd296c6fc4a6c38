"""The health page: the doctor's findings, the job's own figures, and dead letters decoded."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterable
from itertools import pairwise

from muster.console.frames import Json, text
from muster.console.store import Letter
from muster.doctor.probes import base_of
from muster.documents.record_json import as_json
from muster.protocol.codec import decode
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.errors import DecodeError
from muster.protocol.topics import INPUTS, kind_of

PAGE_TIMEOUT_S = 5
VALUE_CHARS_MAX = 4_000
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
QUANTILES = (50, 95, 99)
GAUGES = {
    "muster_rows_behind": "rows that wait to be read",
    "muster_clock_overdue_seconds": "seconds by which the latest wake-up of the clock is overdue",
    "muster_batch_phase_seconds{triggerExecution}": "seconds of the newest micro-batch",
    "muster_state_bytes": "bytes of the state store",
}
TIMES = {
    "muster_event_to_assignment_seconds": "from an event to its assignment",
    "muster_canary_seconds": "from the job's test event to its answer",
    "muster_task_ownerless_seconds": "how long a task had no owner",
}


# ---------------------------------------------------------------- the job's own figures


def fetch(url: str) -> str:
    """The job's metrics page.

    Raises:
        OSError, ValueError: it does not answer.
        BadInput: as `base_of`.
    """
    page = f"{base_of(url)}/metrics"
    with urllib.request.urlopen(page, timeout=PAGE_TIMEOUT_S) as answer:  # noqa: S310  http only
        return str(answer.read().decode())


def figures(page: str) -> Json:
    """The figures of a metrics page that an operator looks at first.

    Returns:
        ``gauges``: [meaning, value]; ``times``: {"what", "count", "p50", "p95", "p99"} in seconds,
        since the job's start.
    """
    gauges: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {name: {} for name in TIMES}
    for line in page.splitlines():
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None:
            continue
        name, labels, value = match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])
        base = name.removesuffix("_bucket")
        if base in buckets and "le" in labels:  # of all prefixes together
            bound = float(labels["le"])
            buckets[base][bound] = buckets[base].get(bound, 0) + value
        phase = labels.get("phase")
        key = name if phase is None else f"{name}{{{phase}}}"
        if key in GAUGES:
            gauges[key] = value
    return {
        "gauges": [[meaning, gauges[key]] for key, meaning in GAUGES.items() if key in gauges],
        "times": [
            {"what": meaning, "count": int(max(buckets[name].values(), default=0))}
            | {f"p{q}": quantile(buckets[name], q / 100) for q in QUANTILES}
            for name, meaning in TIMES.items()
        ],
    }


def quantile(counts: dict[float, float], share: float) -> float | None:
    """A quantile of a histogram: the straight line within its bucket, as Prometheus computes it.

    Args:
        counts: upper bound → how many values are at most that.
        share: 0 to 1.

    Returns:
        None = no values. A quantile beyond the largest finite bound is that bound.
    """
    bounds = sorted(counts)
    if not bounds or counts[bounds[-1]] == 0:
        return None
    wanted = share * counts[bounds[-1]]
    for low, high in pairwise([0.0, *bounds]):
        below = counts.get(low, 0.0)
        if counts[high] >= wanted:
            if high == float("inf"):
                return low
            inside = counts[high] - below
            return round(low + (high - low) * ((wanted - below) / inside if inside else 1), 4)
    return bounds[-1]


# ---------------------------------------------------------------- dead letters


def letters_json(letters: Iterable[Letter], prefix: str, most: int = 100) -> list[Json]:
    """The newest dead letters, newest first, each with its event decoded."""
    return [_letter(letter, prefix) for letter in list(letters)[: -most - 1 : -1]]


def _letter(letter: Letter, prefix: str) -> Json:
    at_ms, record = letter
    known = DeadLetter.__members__.get(record.reason)
    origin = record.origin
    return {
        "at_ms": at_ms,
        "reason": text(record.reason),
        "meaning": known.meaning if known else "a newer version knows this reason",
        "action": known.action if known else "",
        "message": text(record.message, 1_000),
        "origin": text(f"{origin.topic}-{origin.partition}@{origin.offset}"),
        "key": text(record.key.decode(errors="backslashreplace"), 200),
        "event": _event(letter, prefix),
    }


def _event(letter: Letter, prefix: str) -> str:
    """The event as JSON; bytes that cannot be decoded in hexadecimal."""
    record = letter.record
    kind = kind_of(record.origin.topic, prefix)
    if kind in INPUTS:
        try:
            event = decode(kind, record.key, record.value, record.origin)
            text_of_event = json.dumps(as_json(event), ensure_ascii=False, default=str)
            return text(f"{type(event).__name__} {text_of_event}", VALUE_CHARS_MAX)
        except DecodeError:
            pass
    return text(f"no event, {len(record.value)} bytes: {record.value[:200].hex()}", 600)
