"""Every role on a broker that grants it exactly the ACLs of `muster.kafka.acls`."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AclBindingFilter, AdminClient, NewTopic
from structlog.testing import capture_logs
from support.kafka.secured import ROOT, Command, SecuredKafka, secured_kafka
from support.suite.waiting import until

from muster.broker.embedded_kafka import free_port
from muster.cli.main import main
from muster.kafka import access_check
from muster.kafka.acl_grants import Grant, _binding
from muster.kafka.acls import Acl, Pattern, Resource, Role, acls_of
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import read
from muster.kafka.writer import append
from muster.protocol.codec import decode_record
from muster.protocol.events import Lag, LagReport
from muster.protocol.ids import GroupId, MemberId, parse_task
from muster.protocol.keyring import Caller
from muster.protocol.records import Rejected
from muster.protocol.topics import INPUTS, TOPICS, TopicKind, topic_name
from muster.signing.followed_key_file import key_file_of
from muster.streams import input_topic_settings

pytestmark = pytest.mark.broker

PREFIX, OTHER = "acme", "globex"
STRANGER, NO_RIGHTS, LATECOMER = "stranger", "nobody", "latecomer"
"""A worker of the other prefix; a client with a login and no ACLs; one that gets ACLs later."""
QUICK = ("session.timeout.ms=6000", "heartbeat.interval.ms=1000")
Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Two prefixes: a user for each role of the first, a worker of the second."""
    folder = tmp_path_factory.mktemp("secured")
    with secured_kafka(folder, *Role, STRANGER, NO_RIGHTS, LATECOMER) as kafka:
        kafka.grant(PREFIX, **{str(role): str(role) for role in Role})
        kafka.grant(OTHER, worker=STRANGER)
        yield kafka


def words(kafka: SecuredKafka, user: str, prefix: str = PREFIX) -> list[str]:
    """The options that give a command its user and its topics."""
    return ["--command-config", str(kafka.file(user)), "--topic-prefix", prefix]


def worker(group: str, *more: str) -> list[str]:
    """The words of a worker command whose tasks sleep."""
    return ["worker", "--group", group, "--exec", "exec sleep 600", *more]


# ---- all of it at once ------------------------------------------------------------------------


@pytest.mark.spark
def test_each_role_does_its_part_with_nothing_more(
    kafka: SecuredKafka, tmp_path: Path, capsys: Output
) -> None:
    """Every role works as its own principal with only its ACLs and only its signing key.

    Output, Spark's pages, command lines and the checkpoint show no password and no key, and a job
    that loses an ACL ends and names it.
    """
    rings = Rings(tmp_path)
    port = free_port()
    conf = ["spark.ui.enabled=true", f"spark.ui.port={port}"]
    conf_words = [word for each in conf for word in ("--conf", each)]
    checkpoint = ["--checkpoint", str(tmp_path / "checkpoint")]
    with (
        Command(
            tmp_path, "run", *words(kafka, "job"), *checkpoint, *conf_words, *rings.of("all")
        ) as job,
        Command(tmp_path, "clock", *words(kafka, "clock"), *rings.of("clock")) as clock,
        Command(
            tmp_path,
            *worker("orders", "--member-id", "W1"),
            *words(kafka, "worker"),
            *rings.of("member"),
        ) as w1,
    ):
        file = tmp_path / "orders.json"
        config = dict(each.split("=") for each in QUICK)
        tasks = [{"subtopology": "0", "partitions": 4}]
        file.write_text(json.dumps({"assignor": "sticky", "config": config, "tasks": tasks}))
        clock.await_words("clock of acme")
        job.await_words("running")
        capsys.readouterr()
        group, signed = ("--group", "orders"), rings.of("operator")
        assert run(kafka, "operator", "config", "set", *group, "--file", file, *signed) == 0
        until(lambda: _held(kafka, capsys) == 4, "W1 has all tasks", story=job.said)
        _report_lag(kafka, rings)
        assert run(kafka, "operator", "drain", *group, "--member", "W1", *signed) == 0
        for command in (["explain"], ["replay"], ["config", "show"], ["groups", "describe"]):
            assert run(kafka, "viewer", *command, *group) == 0
        run(kafka, "viewer", "doctor", *rings.of("all"))
        printed = capsys.readouterr()
        assert re.search(r"OK +certificate +CN=broker .*valid until", printed.out)
        assert len(re.findall(r"OK +keys +\w+ of \*", printed.out)) == len(Caller)
        pages = _pages(port, "/environment/", "/StreamingQuery/", "/SQL/", "/jobs/")
        pages += _pages(port, *_rest(port))
        lines = _command_lines(job, clock, w1)
        assert w1.stop() == 0
        kept = b"".join(p.read_bytes() for p in (tmp_path / "checkpoint").rglob("*") if p.is_file())
        _revoke(kafka, "job", Acl(Resource.TOPIC, f"{PREFIX}.lag", Pattern.LITERAL, "READ"))
        _report_lag(kafka, rings)
        assert job.wait() == 1
        assert f"muster run: User:job lacks READ on Topic {PREFIX}.lag" in job.said()
        kafka.grant(PREFIX, job="job")
        said = "".join(each.said() for each in (job, clock, w1))
    everything = printed.out + printed.err + said + pages + lines + kept.decode("latin-1")
    leaked = [user for user, password in kafka.passwords.items() if password in everything]
    assert leaked == []
    assert [secret for secret in rings.secrets if secret in everything] == []
    assert _letters(kafka) == []
    assert "sasl.mechanism" not in lines
    assert len(pages) > 10_000


def test_the_job_may_read_the_settings_of_its_input(kafka: SecuredKafka) -> None:
    """It checks who stamps their records; without the right it starts, and says what it lacks."""
    inputs = [topic_name(kind, PREFIX) for kind in (*INPUTS, TopicKind.HEARTBEATS)]
    with capture_logs() as logs:
        settings, hidden = input_topic_settings._settings(kafka.clients("job"), inputs)
        input_topic_settings.check(kafka.clients("job"), inputs)
    assert (sorted(settings), hidden, logs) == (sorted(inputs), [], [])
    _revoke(kafka, "job", Acl(Resource.TOPIC, inputs[0], Pattern.LITERAL, "DESCRIBE_CONFIGS"))
    try:
        access_check.check(kafka.clients("job"), Role.JOB, [PREFIX])
        with capture_logs() as logs:
            input_topic_settings.check(kafka.clients("job"), inputs)
        (warning,) = logs
        assert (warning["log_level"], warning["topics"]) == ("warning", [inputs[0]])
        command = f"topics create --topic-prefix {PREFIX} --acls --job-principal"
        assert command in warning["grant"][0]
    finally:
        kafka.grant(PREFIX, job="job")


class Rings:
    """Signing keys: the job has one for each caller, each other role only its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        everything = str(self._file("all"))
        for caller in Caller:
            command = ["keys", "create", everything, "--caller", caller, "--spread-ms", "0"]
            assert main(command) == 0
        assert main(["keys", "require", everything, "--group", "*", "--spread-ms", "0"]) == 0
        for caller in Caller:
            to = str(self._file(caller))
            assert main(["keys", "export", everything, "--caller", caller, "--to", to]) == 0
        rows = json.loads(self._file("all").read_text())["keys"]
        self.secrets = [row["secret"] for row in rows]
        assert len(self.secrets) == len(Caller)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.ring.json"

    def of(self, name: str) -> list[str]:
        """The options that give a command a keyring."""
        return ["--signing-keys", str(self._file(name))]


def _letters(kafka: SecuredKafka) -> list[str]:
    """Reasons of the dead letters."""
    dead_letters = read(kafka.clients(ROOT), topic_name(TopicKind.REJECTED, PREFIX))
    letters = [decode_record(TopicKind.REJECTED, row.key, row.value) for row in dead_letters]
    return [each.reason for each in letters if isinstance(each, Rejected)]


def run(kafka: SecuredKafka, user: str, *command: object) -> int:
    """Run a command in this process as a user; return its exit code."""
    return main([*map(str, command), *words(kafka, user)])


def _held(kafka: SecuredKafka, capsys: Output) -> int:
    capsys.readouterr()
    if run(kafka, "viewer", "groups", "describe", "--group", "orders", "--format", "json") != 0:
        return 0
    group = json.loads(capsys.readouterr().out)
    return sum(len(member["active"]) for member in group["members"])


def _report_lag(kafka: SecuredKafka, rings: Rings) -> None:
    """Write a lag report, as an exporter does."""
    lag = Lag(parse_task("0_0"), 5)
    report = LagReport(group=GroupId("orders"), member=MemberId("W1"), lags=(lag,))
    keys = key_file_of(rings.of("exporter")[1])
    append(kafka.clients("exporter"), topic_name(TopicKind.LAG, PREFIX), report, keys)


def _pages(port: int, *paths: str) -> str:
    pages = []
    for path in paths:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as page:
            pages.append(page.read().decode())
    return "".join(pages)


def _rest(port: int) -> list[str]:
    """Spark's REST pages that show settings and plans."""
    (app,) = json.loads(_pages(port, "/api/v1/applications"))
    base = f"/api/v1/applications/{app['id']}"
    return [f"{base}/environment", f"{base}/sql?details=true&planDescription=true&length=50"]


def _command_lines(*commands: Command) -> str:
    """The command lines of commands and of all their child processes."""
    lines: list[str] = []
    for command in commands:
        process = psutil.Process(command.pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # the process has ended
                lines += each.cmdline()
    return " ".join(lines)


def _revoke(kafka: SecuredKafka, user: str, acl: Acl) -> None:
    b = _binding(Grant(f"User:{user}", acl))
    which = AclBindingFilter(
        *(b.restype, b.name, b.resource_pattern_type, b.principal),
        *(b.host, b.operation, b.permission_type),
    )
    admin = AdminClient(kafka.clients(ROOT).librdkafka())
    (future,) = admin.delete_acls([which]).values()
    assert len(future.result(30)) == 1


def test_a_governor_leads_a_group_with_nothing_more(
    kafka: SecuredKafka, tmp_path: Path, capsys: Output
) -> None:
    """Over TLS and SASL, with READ on the group and DESCRIBE on its topic, and `muster shadow` too.

    Each missing right is named in one line, and nothing is changed. No coordinator runs: the
    governor decides with the same assignor.
    """
    root = kafka.clients(ROOT).librdkafka()
    admin = AdminClient(root)
    admin.create_topics([NewTopic("parcels", 2, 1)])["parcels"].result(30)
    consumer = Consumer({**root, "group.id": "depot", "session.timeout.ms": 6_000})
    consumer.subscribe(["parcels"])
    adopt = ["adopt", "--group", "depot", *words(kafka, "governor")]

    def refused() -> str:
        capsys.readouterr()
        assert main(adopt) == 1
        assert (
            main(["config", "show", "--group", "depot", *words(kafka, "viewer")]) == 1
        )  # nothing is configured
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 2
        assert consumer.poll(0.1) is None
        assert len(consumer.assignment()) == 2
        return said[0]

    try:
        until(lambda: consumer.poll(0.2) is None and consumer.assignment(), "the group is there")
        grant = "grant: muster topics create --acls --governor-principal 'User:governor'"
        lacks = "muster adopt: User:governor lacks"
        assert refused() == f"{lacks} READ on Group depot; {grant} --governed-group depot"
        create = ["topics", "create", "--acls", "--topic-prefix", PREFIX, "--partitions", "2"]
        create += ["--governor-principal", "User:governor", "--governed-group", "depot"]
        create += ["--command-config", str(kafka.file(ROOT))]
        assert main(create) == 0
        assert refused() == f"{lacks} DESCRIBE on Topic parcels; {grant} --governed-topic parcels"
        _revoke(kafka, "governor", Acl(Resource.TOPIC, f"{PREFIX}.groups", Pattern.LITERAL, "READ"))
        assert f"{lacks} READ on Topic {PREFIX}.groups" in refused()
        assert main([*create, "--governed-topic", "parcels"]) == 0
        capsys.readouterr()
        assert main(["shadow", "--group", "depot", *words(kafka, "governor")[:2]]) == 0
        shown = capsys.readouterr().out
        assert "#PARTITIONS" in shown
        assert "bytes a second: this login may not describe the cluster" in shown
        with Command(tmp_path, *adopt) as governor:

            def answered() -> bool:
                consumer.poll(0.1)
                return "1 member; 2 tasks to start" in governor.said()

            until(answered, "the governor answers", story=governor.said)
            until(
                lambda: consumer.poll(0.1) is None and len(consumer.assignment()) == 2,
                "it is obeyed",
            )
            assert governor.stop() == 0
        assert kafka.passwords["governor"] not in governor.said() + shown
    finally:
        consumer.close()


# ---- what is refused, and how it is said ------------------------------------------------------


def test_a_worker_waits_for_its_rights_and_says_so_once(
    kafka: SecuredKafka, tmp_path: Path
) -> None:
    """Without ACLs a worker names each missing one, once; when they are granted, it joins."""
    with Command(tmp_path, *worker("late"), *words(kafka, LATECOMER)) as late:
        missing = f"User:{LATECOMER} lacks WRITE on Topic {PREFIX}.membership"
        late.await_words(missing)
        rights = ", ".join(map(str, _sorted_as_told(Role.WORKER)))
        assert f"User:{LATECOMER} lacks {rights}" in late.said()
        assert f"--worker-principal 'User:{LATECOMER}'" in late.said()
        kafka.grant(PREFIX, worker=LATECOMER)
        end = topic_name(TopicKind.MEMBERSHIP, PREFIX)
        until(lambda: b"late" in _keys(kafka, end), "it has asked to join", story=late.said)
        assert late.said().count(missing) == 1
        assert late.stop() == 0


def _sorted_as_told(role: Role) -> list[Acl]:
    optional = {topic.name(PREFIX) for topic in TOPICS if topic.optional}
    return [acl for acl in acls_of(role, PREFIX) if acl.name not in optional]


def _keys(kafka: SecuredKafka, topic: str) -> set[bytes | None]:
    return {row.key for row in read(kafka.clients(ROOT), topic)}


Properties = Callable[[SecuredKafka], dict[str, str]]


def wrong_password(kafka: SecuredKafka) -> dict[str, str]:
    """A login with a wrong password."""
    return kafka.properties("worker", "pw wrong;=0123456789")


def expired_certificate(kafka: SecuredKafka) -> dict[str, str]:
    """A client certificate that ended years ago."""
    from support.kafka.secured import EXPIRED

    return kafka.certified(kafka.authority.issue("bygone", EXPIRED))


def no_rights(kafka: SecuredKafka) -> dict[str, str]:
    """A valid login without ACLs."""
    return kafka.properties(NO_RIGHTS)


def another_tenant(kafka: SecuredKafka) -> dict[str, str]:
    """A login with ACLs for the other prefix."""
    return kafka.properties(STRANGER)


EXPIRY = (
    "certificate of CN=bygone in {file} (ssl.certificate.location) expired at 2021-03-04T05:06:07Z"
)
REFUSALS = [
    (wrong_password, "refuses the login of User:worker (SCRAM-SHA-256)"),
    (expired_certificate, EXPIRY),
    (no_rights, f"User:{NO_RIGHTS} lacks {{right}} on Topic acme.{{kind}}"),
    (another_tenant, f"User:{STRANGER} lacks {{right}} on Topic acme.{{kind}}"),
]


@pytest.mark.parametrize(("properties", "words_wanted"), REFUSALS)
def test_a_refusal_names_what_is_missing(
    kafka: SecuredKafka,
    tmp_path: Path,
    capsys: Output,
    properties: Properties,
    words_wanted: str,
) -> None:
    """Job and commands end with the refusal, a worker logs it and goes on; no password is shown."""
    given = properties(kafka)
    file = kafka.written("refused", given)
    wanted = words_wanted.replace("{file}", given.get("ssl.keystore.location", ""))
    options = ["--command-config", str(file), "--topic-prefix", PREFIX]
    with Command(tmp_path, *worker("refused"), *options) as refused:
        assert main(["groups", "list", *options]) == 1
        printed = capsys.readouterr()
        assert wanted.format(right="READ", kind="groups") in printed.err
        with Command(tmp_path, "run", "--checkpoint", str(tmp_path / "c"), *options) as job:
            assert job.wait() == 1
            assert f"muster run: {'' if 'lacks' in wanted else 'Kafka'}" in job.said()
            assert wanted.format(right="READ", kind="membership") in job.said()
        refused.await_words(wanted.format(right="WRITE", kind="membership"))
        assert refused.runs()
        assert refused.stop() == 0
        everything = printed.out + printed.err + job.said() + refused.said()
    secrets = [*kafka.passwords.values(), "pw wrong;=0123456789"]
    assert [secret for secret in secrets if secret in everything] == []


def test_a_viewer_learns_which_right_is_missing(kafka: SecuredKafka, capsys: Output) -> None:
    """A command names the right on consumer groups; the doctor says which ACLs it cannot see."""
    acl = Acl(Resource.GROUP, f"{PREFIX}.", Pattern.PREFIXED, "DESCRIBE")
    _revoke(kafka, "viewer", acl)
    listing = ["groups", "list", *words(kafka, "viewer")]
    until(lambda: main(listing) == 1, "the right is gone")
    assert capsys.readouterr().err.endswith(
        f"User:viewer lacks {acl}, which every reader of these topics needs\n"
    )
    kafka.grant(PREFIX, viewer="viewer")
    until(lambda: main(listing) == 0, "the right is back")
    capsys.readouterr()
    for user, said in (
        ("viewer", "it lacks DESCRIBE on Cluster kafka-cluster"),
        (NO_RIGHTS, "this login may not see it, or it does not exist: members say who"),
    ):
        run(kafka, user, "doctor")
        assert said in capsys.readouterr().out


def test_every_right_of_the_table_is_needed(kafka: SecuredKafka) -> None:
    """Without one of a role's topic ACLs, `access_check.why` names that ACL."""
    optional = {topic.name(PREFIX) for topic in TOPICS if topic.optional}
    missed = {}
    for role in (Role.CLOCK, Role.WORKER, Role.EXPORTER):
        for acl in acls_of(role, PREFIX):
            if acl.resource is not Resource.TOPIC or acl.name in optional:
                continue
            _revoke(kafka, str(role), acl)
            clients = ClientSettings(kafka.properties(str(role)))
            missed[role, acl] = until(
                lambda role=role, clients=clients: access_check.why(clients, role, (PREFIX,)),
                "the right is gone",
            )
            kafka.grant(PREFIX, **{str(role): str(role)})
            until(
                lambda role=role, clients=clients: not access_check.why(clients, role, (PREFIX,)),
                "the right is back",
            )
    for (role, acl), text in missed.items():
        assert f"User:{role} lacks {acl}" in text
