"""Look at a cluster and a running coordinator, and say what to do about what is wrong.

Checks topics and their settings, rights, the coordinator's claim, whether the job answers and its
clock runs, groups that do not settle, dead letters, and when certificates and signing keys end.
With --metrics URL it also checks the job's own figures. It changes nothing. The exit code is 1 if a
finding is FAIL; with warnings alone it is 0.
"""

from __future__ import annotations

import argparse
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from muster.cli import doctor_cluster, doctor_dates, doctor_job
from muster.cli.doctor_claim import is_news
from muster.cli.doctor_facts import Claim, Facts, Heard, Sung
from muster.cli.errors import BadInput, Unreachable
from muster.cli.finding import Finding, Level
from muster.cli.holdups import Debts
from muster.cli.kafka import Row, read
from muster.cli.options import add_format, add_kafka, kafka_settings
from muster.cli.snapshots import history
from muster.cli.table import json_line, table
from muster.kafka import access
from muster.kafka.settings import ClientSettings
from muster.protocol.codec import decode, decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.events import Join, Origin
from muster.protocol.framing import PREFIX
from muster.protocol.ids import GroupId
from muster.protocol.keys import parse_key
from muster.protocol.records import (
    CoordinatorClaim,
    GroupSnapshot,
    Record,
    Rejected,
    WakeUp,
)
from muster.protocol.topics import TopicKind, topic_name
from muster.signing.keyring import add_signing_keys, keyring_path
from muster.streams.canary import GROUP as CANARY

STUCK_S = 300
HEARD_MS = 120_000
"""How far back the membership topic is read."""
PAGE_TIMEOUT_S = 10
ROWS_BEHIND = 10_000
OVERDUE_S = 60.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--metrics",
        metavar="URL",
        help="the job's metrics port, e.g. http://coordinator:8080 (default: not asked)",
    )
    parser.add_argument(
        "--stuck-s",
        type=int,
        metavar="N",
        default=STUCK_S,
        help="seconds a group may be on its way (default: %(default)s)",
    )
    parser.add_argument("--quiet", action="store_true", help="leave out what is as it should be")
    add_format(parser)
    add_signing_keys(add_kafka(parser))


def run(args: argparse.Namespace) -> int:
    """Check everything and print the findings; 1 if one of them is FAIL."""
    if args.stuck_s < 0:
        raise BadInput(f"--stuck-s {args.stuck_s}: expected 0 or more")
    settings, now_ms = kafka_settings(args), time.time_ns() // 1_000_000
    findings = [*doctor_dates.look(settings, keyring_path(args.signing_keys), now_ms)]
    findings += examine(settings, args.topic_prefix, args.stuck_s * 1000)
    if args.metrics is not None:
        findings += metrics(args.metrics)
    shown = [f for f in findings if not (args.quiet and f.level is Level.OK)]
    if args.format == "json":
        for finding in shown:
            print(json_line(finding.as_json()))
    elif shown:
        print(report(shown))
    return int(any(finding.level is Level.FAIL for finding in findings))


def report(findings: Sequence[Finding]) -> str:
    """The findings as a table, and below it what to do, failures first."""
    rows = [(f.level.upper(), f.check, f.subject, f.what) for f in findings]
    told = [table(("STATUS", "CHECK", "SUBJECT", "FINDING"), rows)]
    actions = dict.fromkeys(
        (f.action, f.level) for f in findings if f.action and f.level is not Level.OK
    )
    by_level = sorted(actions, key=lambda action: action[1] is not Level.FAIL)
    if by_level:
        told += ["", "what to do:", *(f"- {action}" for action, _ in by_level)]
    return "\n".join(told)


def examine(settings: ClientSettings, prefix: str, stuck_ms: int) -> Iterator[Finding]:
    """Check the cluster, then the job if the topics can be read."""
    absent = False
    for finding in doctor_cluster.look(settings, prefix):
        absent = absent or (finding.level is Level.FAIL and finding.check == "kafka")
        yield finding
    if absent:
        return
    try:
        facts = gather(settings, prefix)
    except (Unreachable, access.Refused, access.NoTopics) as error:
        yield Finding("job", prefix, Level.SKIPPED, f"cannot be judged: {error}")
        return
    yield from doctor_job.look(facts, prefix, stuck_ms)


# ---------------------------------------------------------------- reading


def gather(settings: ClientSettings, prefix: str) -> Facts:
    """Read what `doctor_job` judges.

    Raises:
        Unreachable, Refused, NoTopics: a topic cannot be read.
    """
    now_ms = time.time_ns() // 1_000_000
    groups: dict[GroupId, tuple[GroupSnapshot, int]] = {}
    answered: dict[GroupId, int] = {}
    writes: list[tuple[int, int]] = []
    debts = Debts()
    for published in history(settings, prefix, None):
        debts.take(published)
        record = published.record
        answered[record.group] = published.at_ms
        if isinstance(record, GroupSnapshot):
            before = groups.get(record.group)
            if is_news(None if before is None else before[0], record):
                writes.append((published.at_ms, record.coordinator_epoch))
            groups[record.group] = (record, published.at_ms)
        else:
            groups.pop(record.group, None)
    wakeups: dict[GroupId, int] = {}
    canary: Sung | None = None
    published_ms = max(answered.values(), default=0)
    alarms = sorted(_records(settings, prefix, TopicKind.CLOCK), key=lambda found: found[1])
    for _, at_ms, wakeup in alarms:  # by time: added partitions can split a group's records
        published_ms = max(published_ms, at_ms)
        if isinstance(wakeup, WakeUp) and wakeup.group == CANARY:
            canary = _sung(wakeup, at_ms)
        elif isinstance(wakeup, WakeUp) and wakeup.at_ms is not None:
            wakeups[wakeup.group] = wakeup.at_ms
        elif isinstance(wakeup, WakeUp):
            wakeups.pop(wakeup.group, None)
    since_ms = now_ms - doctor_job.REJECTED_MS
    rejected = [
        (at_ms, record)
        for _, at_ms, record in _records(settings, prefix, TopicKind.REJECTED, since_ms)
        if isinstance(record, Rejected)
    ]
    heard = _heard(settings, prefix, now_ms - HEARD_MS, answered)
    return Facts(
        now_ms=now_ms,
        read_ms=time.time_ns() // 1_000_000,
        claims=[
            Claim(offset, at_ms, record)
            for offset, at_ms, record in _records(settings, prefix, TopicKind.COORDINATOR)
            if isinstance(record, CoordinatorClaim)
        ],
        groups=groups,
        writes=sorted(writes),
        wakeups=wakeups,
        heard=heard,
        rejected=rejected,
        holdups={group: debts.holdups(snapshot) for group, (snapshot, _) in groups.items()},
        published_ms=max([published_ms, *(at_ms for at_ms, _ in rejected)]),
        canary=canary,
    )


def _sung(wakeup: WakeUp, at_ms: int) -> Sung | None:
    mark = wakeup.published
    if wakeup.at_ms is None or mark is None:
        return None
    return Sung(mark.coordinator_epoch, mark.taken, at_ms, wakeup.at_ms)


def _records(
    settings: ClientSettings, prefix: str, kind: TopicKind, since_ms: int | None = None
) -> Iterator[tuple[int, int, Record]]:
    """(offset, timestamp, record) of every record of a topic that can be decoded."""
    for row in read(settings, topic_name(kind, prefix), since_ms=since_ms):
        try:
            yield row.offset, row.at_ms, decode_record(kind, row.key, row.value)
        except DecodeError:
            continue  # not a record of muster's


def _heard(
    settings: ClientSettings, prefix: str, since_ms: int, answered: Mapping[GroupId, int]
) -> dict[GroupId, Heard]:
    """What the membership topic holds of each group; of the values only joins are decoded.

    Args:
        settings: how to reach Kafka.
        prefix: of the topics.
        since_ms: read records from this timestamp on.
        answered: timestamp of each group's newest record on ``<prefix>.groups``.
    """
    found: dict[GroupId, Heard] = {}
    for row in read(settings, topic_name(TopicKind.MEMBERSHIP, prefix), since_ms=since_ms):
        try:
            group = parse_key(row.key).group
        except DecodeError:
            continue
        before = found.get(group, Heard())
        value = row.value or b""
        if value.startswith(PREFIX["Tick"]):
            found[group] = replace(before, tick_ms=max(before.tick_ms, row.at_ms))
            continue
        found[group] = heard = replace(before, event_ms=max(before.event_ms, row.at_ms))
        if row.at_ms > answered.get(group, 0) and value.startswith(PREFIX["Join"]):
            since_ms = before.unanswered_ms or row.at_ms
            joined = before.joined | _joined(row)
            found[group] = replace(heard, unanswered_ms=since_ms, joined=joined)
    return found


def _joined(row: Row) -> frozenset[str]:
    """The id of the member that joins; empty if the join cannot be decoded."""
    origin = Origin("", row.partition, row.offset, row.at_ms)
    try:
        event = decode(TopicKind.MEMBERSHIP, row.key, row.value, origin)
    except DecodeError:
        return frozenset()
    return frozenset([event.member]) if isinstance(event, Join) else frozenset()


# ---------------------------------------------------------------- the job's own figures


def metrics(url: str) -> Iterator[Finding]:
    """Findings from the job's own pages: readiness, health, and two of its metrics.

    Raises:
        BadInput: it is not a URL of HTTP.
    """
    base = url if "://" in url else f"http://{url}"
    base = base.removesuffix("/").removesuffix("/metrics")
    if not base.startswith(("http://", "https://")):
        raise BadInput(f"--metrics {url}: expected http://HOST:PORT")
    try:
        pages = {path: _page(f"{base}{path}") for path in ("/metrics", "/healthz", "/readyz")}
    except (OSError, ValueError) as error:
        what = f"does not answer: {getattr(error, 'reason', error)}"
        yield Finding("job", base, Level.FAIL, what, "is it running, with muster.metrics.port set?")
        return
    for path, action in (
        ("/readyz", "wait while it catches up; its log says what it waits for"),
        ("/healthz", "restart it with the checkpoint it had, then read its log"),
    ):
        status, text = pages[path]
        level = Level.OK if status == 200 else Level.FAIL
        yield Finding("job", f"{base}{path}", level, text.strip(), action)
    values = _values(pages["/metrics"][1])
    behind = values.get("muster_rows_behind", 0.0)
    yield Finding(
        "job",
        "lag",
        Level.OK if behind <= ROWS_BEHIND else Level.WARN,
        f"rows that wait to be read: {behind:.0f}",
        "more cores, or more partitions; muster_batch_phase_seconds says where the time goes",
    )
    overdue_s = values.get("muster_clock_overdue_seconds", 0.0)
    yield Finding(
        "clock",
        base,
        Level.OK if overdue_s <= OVERDUE_S else Level.FAIL,
        f"the wake-up that waits longest is {overdue_s:.0f} s past",
        "the query is behind, or the clock cannot write ticks: the job's log says which",
    )


def _page(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PAGE_TIMEOUT_S) as page:  # noqa: S310  http only
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _values(text: str) -> dict[str, float]:
    """Metrics without labels, by name."""
    found = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return {words[0]: float(words[1]) for words in found if len(words) == 2}
