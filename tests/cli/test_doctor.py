"""What the doctor says about given facts, and about a job's metrics port."""

from __future__ import annotations

from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import numpy as np
import pytest
from support.cli.examined import NOW, ORDERS, VERSION, facts, first_finding, levels
from support.state.snapshots import orders

from muster.cli import doctor
from muster.cli.main import COMMANDS, main
from muster.doctor import fact_reader
from muster.doctor import groups as doctor_groups
from muster.doctor import job as doctor_job
from muster.doctor.cluster import differences, missing
from muster.doctor.facts import Claim, Heard
from muster.doctor.finding import Finding, Level
from muster.doctor.probes import metrics
from muster.kafka.acls import Role, acls_of
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Row
from muster.protocol.codec import encode
from muster.protocol.events import Origin, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import (
    CoordinatorClaim,
    GroupState,
    KeptDrain,
    MemberState,
    Quarantine,
    Rejected,
)
from muster.protocol.tick_covers import Cover
from muster.protocol.topics import BY_KIND, TopicKind
from muster.published.holdups import Holdup
from muster.published.unapplied_configs import Unapplied


def test_nothing_is_wrong() -> None:
    """A settled group, answered wake-ups and one claim: every check is OK."""
    assert levels(facts()) == {
        ("claim", "muster"): Level.OK,
        ("job", "muster"): Level.OK,
        ("group", "all"): Level.OK,
        ("rejected", "muster"): Level.OK,
    }


def test_no_coordinator() -> None:
    """Without a claim one finding says to start a job, and no finding is about the job."""
    finding = first_finding(facts(claims=()), "claim")
    assert (finding.level, finding.action) == (Level.FAIL, "start `muster run`")
    assert ("job", "muster") not in levels(facts(claims=()))


def test_a_member_that_does_not_stop_its_tasks() -> None:
    """A member that does not stop its tasks in time is named with an action; earlier it is not."""
    holdup = Holdup("w5", ("orders_3",), NOW - 12_000, 15_000, NOW + 9_000, False, 45_000)
    slow = facts(holdups={ORDERS: (holdup,)})
    assert levels(slow)["group", "all"] is Level.OK
    hung = replace(slow, now_ms=NOW + 4_000, wakeups={ORDERS: NOW + 5_000})
    finding = first_finding(hung, "group")
    assert (finding.level, finding.subject) == (Level.WARN, "orders")
    assert "waits for w5: orders_3: w5 was asked to stop it 16 s ago; fenced at" in finding.what
    assert finding.action.startswith("read the log of w5")


def test_heartbeats_that_no_clock_reads() -> None:
    """The newest ticks have no cover for longer than a start takes: no member would expire."""
    apart = {ORDERS: (replace(orders(), apart=(0, 2)), NOW)}
    unread = {ORDERS: Heard(tick_ms=NOW, uncovered_ms=NOW - 31_000)}
    for uncovered_ms, is_told in ((0, False), (NOW - 9_000, False), (NOW - 31_000, True)):
        seen = facts(groups=apart, heard={ORDERS: Heard(tick_ms=NOW, uncovered_ms=uncovered_ms)})
        assert (("group", "orders") in levels(seen)) is is_told
    finding = first_finding(facts(groups=apart, heard=unread), "group")
    assert finding.level is Level.FAIL
    assert finding.what.startswith("2 members heartbeat apart, and the coordinator does not read")
    assert ("group", "orders") not in levels(facts(heard=unread))


def test_the_first_tick_after_a_start_proves_nothing(monkeypatch) -> None:
    """A quiet group has one in ten minutes; that of a clock which has read nothing has no cover."""
    first, covered = Tick(group=ORDERS), Tick(group=ORDERS, cover=Cover(1, 2, ()))

    def is_told(*ticks: tuple[int, Tick]) -> bool:
        rows = [
            Row(each.key, each.value, "muster.membership", 0, n, at_ms)
            for n, (at_ms, tick) in enumerate(ticks)
            for each in (encode(tick),)
        ]
        monkeypatch.setattr(fact_reader, "read", lambda *_, **__: iter(rows))
        heard = fact_reader._heard(ClientSettings({}), "muster", 0, {})
        apart = {ORDERS: (replace(orders(), apart=(0, 2)), NOW)}
        return ("group", "orders") in levels(facts(groups=apart, heard=heard))

    assert not is_told((NOW - 2_000, first))
    assert not is_told((NOW - 60_000, first), (NOW - 50_000, covered), (NOW - 5_000, first))
    assert is_told((NOW - 90_000, covered), (NOW - 40_000, first), (NOW - 2_000, first))


def test_workers_that_ask_for_a_deleted_group() -> None:
    """Workers that join a deleted group are named with an action; without them all is fine."""
    dead = replace(orders(), state=GroupState.DEAD, members=(), tasks=())
    asking = Heard(event_ms=NOW, unanswered_ms=NOW - 60_000, joined=frozenset(["w1", "w2"]))
    seen = facts(groups={ORDERS: (dead, NOW - 120_000)}, heard={ORDERS: asking}, wakeups={})
    finding = first_finding(seen, "group")
    assert (finding.level, finding.subject) == (Level.WARN, "orders")
    assert finding.what == "was deleted 2 min ago, and 2 workers ask to join it: w1, w2"
    assert finding.action == "stop them, or: muster config set --group orders --tasks FILE"
    assert ("job", "joins") not in levels(seen)
    assert not any(check == "group" for check, _ in levels(replace(seen, heard={})))


def test_a_drained_member_that_was_expelled() -> None:
    """A drained member that was expelled is a warning: its process may still run tasks."""
    expelled = KeptDrain(MemberId("w5"), None, NOW - 9_000, True)
    snapshot, at_ms = facts().groups[ORDERS]
    kept = replace(snapshot, drains=(expelled,))
    finding = first_finding(facts(groups={ORDERS: (kept, at_ms)}), "group")
    assert finding.level is Level.WARN
    assert finding.what.startswith("w5 was expelled before it was empty")
    assert finding.action.endswith("muster drain --group orders --member w5 --cancel")
    left = replace(snapshot, drains=(expelled._replace(expelled=False),))
    assert levels(facts(groups={ORDERS: (left, at_ms)}))["group", "all"] is Level.OK


def test_a_group_that_is_quarantined() -> None:
    """A quarantined group has one finding: the cause, its age and the command that releases it."""
    snapshot, at_ms = facts().groups[ORDERS]
    aside = replace(snapshot, quarantine=Quarantine(NOW - 60_000, "it was ended by SIGABRT"))
    stuck = replace(aside, state=GroupState.ASSIGNING, generation_ms=1)
    finding = first_finding(facts(groups={ORDERS: (stuck, at_ms)}), "group")
    assert finding.level is Level.FAIL
    assert finding.what == "is quarantined for 60 s: it was ended by SIGABRT"
    assert finding.action.endswith("then: muster groups release --group orders")


def test_a_group_that_does_not_follow_its_newest_configuration() -> None:
    """A refusal with its reason; a change that waits; a first configuration that was refused."""
    refused = Unapplied(ORDERS, 0, 7, NOW - 9_000, "9 tasks; at most 8")
    finding = first_finding(facts(unapplied={ORDERS: refused}), "group")
    assert (finding.level, finding.subject) == (Level.WARN, "orders")
    assert finding.what == (
        "the newest change of its configuration, 9 s ago, was refused: 9 tasks; at most 8; it "
        "follows the one before"
    )
    assert finding.action.endswith("then: muster config set --group orders --tasks FILE")
    waits = refused._replace(refusal="")
    finding = first_finding(facts(unapplied={ORDERS: waits}), "group")
    assert finding.what == "the newest change of its configuration, 9 s ago, is not applied yet"
    first = refused._replace(group=GroupId("new"), is_first=True)
    told = facts(unapplied={first.group: first})
    finding = first_finding(told, "group")
    assert (finding.level, finding.subject) == (Level.WARN, "new")
    assert finding.what.endswith("was refused: 9 tasks; at most 8; there is no group yet")
    assert levels(told)["group", "all"] is Level.OK


def test_another_version() -> None:
    """A coordinator of another version than the command is a finding."""
    old = Claim(3, NOW - 3_600_000, CoordinatorClaim(job="a", host="h", version="0.0.9"))
    assert first_finding(facts(claims=(old,)), "claim").what == (
        f"the coordinator is muster 0.0.9, this is {VERSION}"
    )


def test_a_job_that_does_not_answer() -> None:
    """A wake-up long past with events after it means that the job, not the clock, has failed."""
    dead = facts(wakeups={ORDERS: NOW - 45_000})
    assert levels(dead)["job", "muster"] is Level.FAIL
    assert "events of group orders have waited for 45 s" in first_finding(dead, "job").what
    assert ("clock", "muster") not in levels(dead)


def test_a_dead_clock() -> None:
    """A wake-up long past without events after it means that the clock, not the job, has failed."""
    quiet = facts(wakeups={ORDERS: NOW - 130_000}, heard={})
    assert levels(quiet)["clock", "muster"] is Level.FAIL
    assert levels(quiet)["job", "muster"] is Level.OK
    assert "the wake-up of group orders was due 2 min ago" in first_finding(quiet, "clock").what


def test_a_dead_clock_is_dated_by_its_own_groups() -> None:
    """A group that the job has left unanswered for longer does not say since when no clock runs."""
    other = GroupId("other")
    both = facts(
        groups={ORDERS: (orders(), NOW), other: (replace(orders(), group=other), NOW)},
        wakeups={ORDERS: NOW - 130_000, other: NOW - 900_000},
        heard={other: Heard(event_ms=NOW - 1_000)},
    )
    assert "the wake-up of group orders was due 2 min ago" in first_finding(both, "clock").what


def test_a_wake_up_within_the_grace_period_is_no_failure() -> None:
    """A wake-up that is late by less than the grace period is no failure."""
    assert Level.FAIL not in levels(facts(wakeups={ORDERS: NOW - 29_000})).values()


def test_a_clock_that_is_off() -> None:
    """Events with future timestamps show that this machine's clock is behind Kafka's."""
    ahead = facts(heard={ORDERS: Heard(event_ms=NOW + 9_000)})
    assert first_finding(ahead, "clock").what == "this machine's clock is 9 s behind Kafka's"


def test_reading_may_take_long() -> None:
    """Events written while the doctor reads are not from the future."""
    slow = facts(heard={ORDERS: Heard(event_ms=NOW + 9_000)}, read_ms=NOW + 8_000)
    assert ("clock", "this machine") not in levels(slow)


@pytest.mark.parametrize("known", [False, True])
def test_joins_that_are_not_answered(known: bool) -> None:
    """Unanswered joins of a group without members show that the job does not answer."""
    snapshot = replace(orders(), members=(), state=GroupState.EMPTY)
    there = {ORDERS: (snapshot, NOW - 70_000)} if known else {}
    waiting = {ORDERS: Heard(event_ms=NOW - 1_000, unanswered_ms=NOW - 60_000)}
    dead = facts(heard=waiting, wakeups={}, groups=there, published_ms=NOW - 70_000)
    finding = first_finding(dead, "job")
    assert finding.level is Level.FAIL
    assert finding.what == "does not answer: joins of group orders have waited for 60 s"
    soon = replace(dead, heard={ORDERS: replace(waiting[ORDERS], unanswered_ms=NOW - 29_000)})
    assert levels(soon)["job", "muster"] is Level.SKIPPED
    others = first_finding(replace(dead, published_ms=NOW - 10_000), "job")
    assert (others.level, others.what) == (
        Level.WARN,
        "joins of group orders have no effect, but the job answers others",
    )
    assert "muster.rejected" in others.action
    assert Level.FAIL not in levels(facts(heard=waiting)).values()  # the group has members by now


@pytest.mark.parametrize(
    ("changes", "waits_for"),
    [
        ({}, "waits for W1 to release tasks"),
        ({"recovering": (2,)}, "waits for a report of W2"),
        ({"members": ()}, "it has no members"),
        (
            {"members": tuple(replace(m, state=MemberState.STABLE) for m in orders().members)},
            "waits for learners on W2 to catch up",
        ),
    ],
)
def test_a_stuck_group_says_whom_it_waits_for(changes: dict, waits_for: str) -> None:
    """A group that reconciles for too long is a failure that says what it waits for."""
    snapshot = replace(orders(), generation_ms=NOW - 400_000, **changes)
    stuck = facts(groups={ORDERS: (snapshot, NOW - 1_000)})
    finding = first_finding(stuck, "group")
    assert finding.level is Level.FAIL
    assert finding.what == (f"Reconciling for 6 min (generation 7, W2 joined): {waits_for}")
    fresh = replace(snapshot, generation_ms=NOW - 200_000)
    assert levels(facts(groups={ORDERS: (fresh, NOW)}))["group", "all"] is Level.OK


def test_a_group_that_was_never_configured() -> None:
    """Members without tasks are a warning with the command, and later a failure."""
    waits = replace(
        orders(), state=GroupState.NOT_READY, tasks=(), holder=np.empty(0, dtype=np.int32)
    )
    for since_ms, level in ((10_000, Level.WARN), (400_000, Level.FAIL)):
        snapshot = replace(waits, generation_ms=NOW - since_ms)
        finding = first_finding(facts(groups={ORDERS: (snapshot, NOW)}), "group")
        assert (finding.level, finding.what) == (
            level,
            "has 2 members and no tasks; configured groups: none",
        )
        assert finding.action == "muster config set --group orders --tasks FILE"


def test_similar_names_are_looked_up_for_a_few_groups_only(monkeypatch) -> None:
    """It takes time for each known name: of a thousand groups without tasks five have them."""
    asked = []

    def there_are(name: str, known: object) -> str:
        asked.append(name)
        return "similar"

    monkeypatch.setattr(doctor_groups, "there_are", there_are)
    bare = replace(
        orders(), state=GroupState.NOT_READY, tasks=(), holder=np.empty(0, dtype=np.int32)
    )
    groups = {
        GroupId(f"g{n:02}"): (replace(bare, group=GroupId(f"g{n:02}")), NOW) for n in range(20)
    }
    groups[ORDERS] = (orders(), NOW)
    said = [
        f.what.rpartition(" ")[2] for f in doctor_groups.look(facts(groups=groups), "muster", 10**9)
    ]
    assert asked == [f"g{n:02}" for n in range(doctor_groups.SIMILAR_MAX)]
    assert said.count("similar") == doctor_groups.SIMILAR_MAX
    assert said.count("1") == 20 - doctor_groups.SIMILAR_MAX


def test_tasks_without_an_owner() -> None:
    """Tasks without an owner in a stable group are a finding, unless a delay holds them back."""
    snapshot = replace(orders(), state=GroupState.STABLE, generation_ms=NOW - 400_000)
    bare = facts(groups={ORDERS: (snapshot, NOW)})
    assert first_finding(bare, "group").what == "1 of 5 tasks have no owner"
    held = replace(snapshot, delay_until_ms=NOW + 1)
    assert levels(facts(groups={ORDERS: (held, NOW)}))["group", "all"] is Level.OK


def test_a_group_whose_members_are_all_gone() -> None:
    """A group with tasks and no members is a finding, once it is too long for a restart."""
    empty = replace(orders(), state=GroupState.EMPTY, members=(), generation_ms=NOW - 400_000)
    finding = first_finding(facts(groups={ORDERS: (empty, NOW)}), "group")
    assert finding.what == "has no member for 6 min: no worker runs its 5 tasks"
    for fine in (replace(empty, generation_ms=NOW - 200_000), replace(empty, tasks=())):
        assert levels(facts(groups={ORDERS: (fine, NOW)}))["group", "all"] is Level.OK


def test_dead_letters() -> None:
    """Dead letters are counted by reason with the last message; a failed group is a failure."""

    def letter(reason: str, message: str) -> Rejected:
        return Rejected(
            origin=Origin("muster.membership", 1, 42, NOW), reason=reason, message=message
        )

    seen = facts(
        rejected=(
            (NOW - 700_000, letter("UNDECODABLE", "long ago")),
            (NOW - 3_000, letter("UNDECODABLE", "first")),
            (NOW - 2_000, letter("UNDECODABLE", "second")),
            (NOW - 1_000, letter("GROUP_FAILED", "Traceback\n  …\nKeyError: 3")),
        )
    )
    letters = {f.subject: f for f in doctor_job.rejected(seen, "muster")}
    assert letters["UNDECODABLE"].what == (
        "2 in 10 minutes (0.2 a minute); the last, muster.membership-1@42: second"
    )
    assert letters["GROUP_FAILED"].level is Level.FAIL
    assert letters["GROUP_FAILED"].what.endswith("KeyError: 3")


def test_settings_of_a_topic() -> None:
    """Each wrong topic setting is named with the command that fixes it, failures first."""
    topic = BY_KIND[TopicKind.GROUPS]
    right = dict(topic.settings)
    assert differences(topic, "muster.groups", right, "k:1") == []
    larger = right | {"max.message.bytes": "10485880"}
    assert differences(topic, "muster.groups", larger, "k:1") == []
    wrong = right | {"cleanup.policy": "delete", "delete.retention.ms": "1"}
    wrong["max.message.bytes"] = "1000"
    differing = differences(topic, "muster.groups", wrong, "k:1")
    assert [(level, what) for level, what, _ in differing[:2]] == [
        (Level.FAIL, "cleanup.policy is delete, must be compact"),
        (Level.FAIL, "max.message.bytes is 1000, must be at least 1048588"),
    ]
    assert [(level, what.split()[0]) for level, what, _ in differing[2:]] == [
        (Level.WARN, "delete.retention.ms")
    ]
    assert differing[0][2] == (
        "kafka-configs.sh --bootstrap-server k:1 --alter --entity-type topics "
        "--entity-name muster.groups --add-config cleanup.policy=compact"
    )


def test_rights_that_no_principal_has() -> None:
    """Exact, prefixed and wildcard ACLs grant a right, and so does ALL."""
    needed = acls_of(Role.WORKER, "muster")
    assert missing(needed, []) == list(needed)
    exact = [(a.resource.upper(), a.name, a.pattern.value, a.operation) for a in needed]
    assert missing(needed, exact) == []
    assert missing(needed, exact[1:]) == [needed[0]]
    wide = [("TOPIC", "mus", "PREFIXED", "ALL"), ("GROUP", "*", "LITERAL", "READ")]
    assert missing(needed, wide) == []
    assert missing(needed, [("TOPIC", "muster", "LITERAL", "ALL"), wide[1]]) == list(needed[:-1])


def test_the_report() -> None:
    """The report is a table, then actions: failures first, none twice, none for what is OK."""
    shown = doctor.report(
        [
            Finding("topic", "t", Level.OK, "fine", "not this"),
            Finding("topic", "u", Level.WARN, "odd", "maybe that"),
            Finding("topic", "v", Level.FAIL, "gone", "make it"),
            Finding("topic", "w", Level.FAIL, "gone", "make it"),
        ]
    )
    assert shown.splitlines() == [
        "STATUS CHECK SUBJECT FINDING",
        "OK     topic t       fine",
        "WARN   topic u       odd",
        "FAIL   topic v       gone",
        "FAIL   topic w       gone",
        "",
        "what to do:",
        "- make it",
        "- maybe that",
    ]


def serve(pages: dict[str, tuple[int, str]]) -> tuple[HTTPServer, str]:
    """A metrics port with these pages, and its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = pages[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}"


def test_the_jobs_own_figures() -> None:
    """The metrics port gives probes, lag and clock; a missing job is a failure."""
    server, url = serve(
        {
            "/metrics": (
                200,
                "# HELP x y\nmuster_rows_behind 20000.0\n"
                'muster_clock_overdue_seconds 61.0\nother{a="b"} 1\n',
            ),
            "/healthz": (200, "ok\n"),
            "/readyz": (503, "catching up: …\n"),
        }
    )
    with server:
        findings = [(f.check, f.level, f.what) for f in metrics(f"{url}/metrics")]
        server.shutdown()
    assert findings == [
        ("job", Level.FAIL, "catching up: …"),
        ("job", Level.OK, "ok"),
        ("job", Level.WARN, "rows that wait to be read: 20000"),
        ("clock", Level.FAIL, "the oldest wake-up is 61 s overdue"),
    ]
    (gone,) = metrics(url)
    assert gone.level is Level.FAIL


def test_a_port_that_is_not_the_jobs() -> None:
    """The console's port has no metrics page: one failure says so, and ends nothing."""
    no_page = (404, "Not Found")
    server, url = serve(dict.fromkeys(("/metrics", "/healthz", "/readyz"), no_page))
    with server:
        (finding,) = metrics(url)
        server.shutdown()
    assert finding.level is Level.FAIL
    assert "not the job's metrics port" in finding.what


def test_the_command_is_listed() -> None:
    """`muster --help` lists the doctor."""
    assert COMMANDS["doctor"][0] == doctor.__name__


def test_a_password_in_the_address_of_the_metrics_is_not_shown(capsys) -> None:
    """Neither command nor page repeats it: both refuse the address before they use it."""
    for command in (["doctor", "--metrics"], ["console", "--port", "0", "--metrics"]):
        for url in ("http://ann:s3cret@127.0.0.1", "ann:s3cret@127.0.0.1:1/metrics"):
            assert main([*command, url, "--bootstrap-server", "127.0.0.1:1"]) == 2
            out, err = capsys.readouterr()
            assert "s3cret" not in out + err
            assert err.endswith("expected http://HOST:PORT, without a name and password\n")


def test_the_console_refuses_an_address_of_no_metrics(capsys) -> None:
    """At its start, as the doctor does; it used to start and show the fault on a page."""
    assert main(["console", "--port", "0", "--metrics", "ftp://job"]) == 2
    assert capsys.readouterr().err.endswith("--metrics ftp://job: expected http://HOST:PORT\n")
