"""What an operator sees of a real job: metrics, probes, log, doctor and alerts."""

from __future__ import annotations

import json
import shutil
import signal
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.kafka.brokers import Topics
from support.streams.job import COMMAND, Job
from support.suite.waiting import until
from support.worker.fleet import QUICK, Fleet

from muster.broker.embedded_kafka import free_port
from muster.broker.ends_with_parent import Tethered
from muster.cli.main import main
from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind
from muster.streams import canary

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "docker" / "monitoring"
GROUP = "observed"


class Page:
    """A scrape of the metrics, by name and labels."""

    def __init__(self, job: Job) -> None:
        status, text = job.get("/metrics")
        assert status == 200
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        self.values = {n: float(v) for n, _, v in (line.rpartition(" ") for line in lines)}
        self._prefix = job.topics.prefix

    def get(self, name: str, **labels: str) -> float:
        """A sample with the job's prefix; 0 if there is none."""
        all_labels = {"prefix": self._prefix, **labels}
        inner = ",".join(f'{key}="{all_labels[key]}"' for key in sorted(all_labels))
        return self.values.get(f"muster_{name}{{{inner}}}", 0.0)


@pytest.fixture(scope="module")
def job(kafka: Topics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A coordinator that logs JSON and counts as stalled after eight seconds."""
    folder = tmp_path_factory.mktemp("job")
    conf = ["muster.stall.ms=8000", "muster.canary.interval.ms=1000"]
    with Job(kafka, folder, conf=conf, command=[*COMMAND, "--log-format", "json"]) as job:
        yield job.start()


@pytest.fixture(scope="module")
def life(job: Job, kafka: Topics, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A scrape after members joined, died and left, and after one undecodable record."""
    with Fleet(kafka, tmp_path_factory.mktemp("fleet"), GROUP) as fleet:
        fleet.configure(6)
        # A join in the config's own batch would share a generation with it.
        until(lambda: Page(job).get("group_tasks", group=GROUP) == 6, "the config is read")
        fleet.start("W1")
        fleet.settled()
        fleet.start("W2")
        fleet.settled()
        fleet.kill("W1")
        fleet.settled()
        kafka.write_raw(TopicKind.MEMBERSHIP, GROUP.encode(), b"nonsense")
        until(
            lambda: Page(job).get("rejected_events_total", reason="UNDECODABLE") == 1,
            "the dead letter is counted",
            story=job.tail,
        )
        fleet.start("W3")
        fleet.settled()
        fleet.stop("W2")
        fleet.settled()
        page = until(lambda: _told(Page(job)), "all of it is told", story=job.tail)
        fleet.check()
        return page


def _told(page: Page) -> Page | None:
    is_whole = page.get("generations_total", group=GROUP, cause="left") == 1
    return page if is_whole and page.get("records_total", kind="groups") >= 5 else None


def test_metrics_tell_the_life(life: Page) -> None:
    """The metrics match the life: generations, moves, members, tasks, latency, ownerless time."""
    causes = {
        cause: life.get("generations_total", group=GROUP, cause=cause)
        for cause in ("joined", "expired", "left")
    }
    assert causes == {"joined": 3, "expired": 1, "left": 1}
    moved = {
        cause: life.get("tasks_moved_total", group=GROUP, role="active", cause=cause)
        for cause in causes
    }
    assert moved == {"joined": 6 + 3 + 3, "expired": 3, "left": 3}
    assert life.get("group_members", group=GROUP) == 1
    assert life.get("group_tasks", group=GROUP) == 6
    assert life.get("unassigned_tasks", group=GROUP) == 0
    assert life.get("imbalance_ratio", group=GROUP) == 1
    assert life.get("groups", state="Stable") >= 1
    # Every task that came from a member: 3 and 3 to new members, 3 of the dead, 3 of the leaver.
    assert life.get("task_ownerless_seconds_count") == 12
    assert life.get("event_to_assignment_seconds_count") >= 5
    assert life.get("assignment_bytes_count") >= 5
    assert life.values["muster_batches_total"] > 0
    assert life.values["muster_ready"] == life.values["muster_healthy"] == 1


def test_ownerless_time_includes_the_session_of_a_dead_member(life: Page) -> None:
    """Ownerless time includes a session timeout for each of the dead member's three tasks."""
    session_s = int(QUICK["session.timeout.ms"]) / 1000
    assert life.get("task_ownerless_seconds_sum") >= 3 * session_s


def test_the_log_is_json_with_a_line_a_generation(life: Page, job: Job) -> None:
    """Every log line is JSON, and each generation has one line with cause and moves."""
    entries: list[dict[str, Any]] = [
        json.loads(line) for line in job.log_file.read_text().splitlines()
    ]
    ours = [each for each in entries if each.get("group") == GROUP]
    generations = [
        (e["generation"], e["cause"], e["moves"]) for e in ours if e["event"] == "generation"
    ]
    assert generations[:5] == [
        (1, "W1 joined", 6),
        (2, "W2 joined", 3),
        (3, "W1 expired", 3),
        (4, "W3 joined", 3),
        (5, "W2 left", 3),
    ]
    # The fleet is killed after the scrape; the coordinator may have noticed it by now.
    assert generations[5:] in ([], [(6, "W3 expired", 0)])
    assert {"claimed", "running"} <= {each.get("event") for each in entries}


def test_the_doctor_finds_no_failure(
    life: Page, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor, with Kafka and the metrics port, finds no failure and lists the dead letter."""
    kafka = job.topics
    command = ["doctor", "--bootstrap-server", kafka.address, "--topic-prefix", kafka.prefix]
    code = main([*command, "--metrics", job.url, "--format", "json"])
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    failures = [f"{each['check']}: {each['what']}" for each in findings if each["level"] == "fail"]
    assert code == 0, "\n".join(failures)
    assert not failures
    letters = [each["what"] for each in findings if each["check"] == "rejected"]
    assert letters[0].startswith("1 in 10 minutes")


def test_batches_leave_no_file_open(life: Page, job: Job) -> None:
    """The JVM has as many open files and sockets after 40 more batches as before."""
    (jvm,) = (p for p in psutil.Process(job.pid).children(recursive=True) if _is_driver(p))

    def batch() -> None:
        """One more batch: a config of a group of its own makes it."""
        before = Page(job).values["muster_batches_total"]
        job.topics.write(
            TopicKind.CONFIG,
            GroupConfig(
                group=GroupId("files"),
                assignor="sticky",
                settings=parse_settings({}, "sticky"),
                tasks=(Subtopology("0", 1),),
            ),
        )
        until(lambda: Page(job).values["muster_batches_total"] > before, "a batch", story=job.tail)

    for _ in range(5):  # what is opened once is open by then
        batch()
    before = jvm.num_fds()
    for _ in range(40):
        batch()
    assert jvm.num_fds() < before + 20


def test_prometheus_takes_it(life: Page, job: Job, tmp_path: Path) -> None:
    """A real Prometheus scrapes the job, loads every rule and answers every dashboard query."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus (Debian has it in the package prometheus)")
    config = (MONITORING / "prometheus.yaml").read_text()
    config = config.replace("coordinator:8080", job.url.removeprefix("http://"))
    config = config.replace("rules.yaml", str(MONITORING / "rules.yaml")).replace("5s", "1s")
    (tmp_path / "prometheus.yaml").write_text(config)
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={tmp_path / 'prometheus.yaml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
    ]

    def ask(path: str, **query: str) -> Any:
        words = urllib.parse.urlencode(query)
        with urllib.request.urlopen(f"{url}/api/v1/{path}?{words}", timeout=10) as page:
            return json.load(page)["data"]

    def is_up() -> bool:
        try:
            targets = ask("targets")["activeTargets"]
        except OSError:
            return False
        return [target["health"] for target in targets] == ["up"]

    with (tmp_path / "log").open("wb") as log:
        process = Tethered(command, output=log, cwd=tmp_path)
    try:
        until(is_up, "the target is up", story=lambda: (tmp_path / "log").read_text())

        def evaluated() -> list[dict[str, Any]]:
            all_rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
            return all_rules if all(rule["health"] != "unknown" for rule in all_rules) else []

        rules = until(evaluated, "every rule was looked at")
        assert {rule["health"] for rule in rules} == {"ok"}
        assert len(rules) == (MONITORING / "rules.yaml").read_text().count("- alert:")
        (ready,) = ask("query", query="muster_ready")["result"]
        assert ready["value"][1] == "1"
        dashboard = json.loads((MONITORING / "grafana" / "muster.json").read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                expr = target["expr"].replace("$__rate_interval", "1m")
                expr = expr.replace("$prefix", ".*").replace("$group", ".*")
                ask("query", query=expr)  # raises for what Prometheus cannot answer
    finally:
        process.kill()


def _is_python_worker(process: psutil.Process) -> bool:
    try:
        return "muster.streams.python_daemon" in " ".join(process.cmdline())
    except psutil.Error:
        return False  # it has just ended


def _is_driver(process: psutil.Process) -> bool:
    """Whether it is the driver's JVM, not one that makes a class archive."""
    try:
        return process.name() == "java" and "-Xshare:dump" not in process.cmdline()
    except psutil.Error:
        return False


def test_a_stuck_batch_is_reported_as_stalled(life: Page, job: Job) -> None:
    """While the Python workers are frozen in a batch, /healthz says stalled; afterwards ok."""
    workers = [c for c in psutil.Process(job.pid).children(recursive=True) if _is_python_worker(c)]
    assert workers
    for worker in workers:
        worker.send_signal(signal.SIGSTOP)
    try:
        until(lambda: job.get("/healthz")[0] == 503, "the stall is noticed", story=job.tail)
        assert job.get("/healthz")[1].startswith("stalled")
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGCONT)
    until(lambda: job.get("/healthz") == (200, "ok\n"), "it is well again", story=job.tail)


def test_the_canary_is_timed(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """The canary is timed again and again; the doctor shows it, and group lists do not."""
    until(
        lambda: Page(job).get("canary_seconds_count") >= 2,
        "two events of its own are timed",
        story=job.tail,
    )
    kafka = ["--bootstrap-server", job.topics.address, "--topic-prefix", job.topics.prefix]
    main(["doctor", *kafka])
    printed = capsys.readouterr().out
    assert "an event of its own was answered in" in printed
    main(["groups", "list", *kafka])
    assert canary.GROUP not in capsys.readouterr().out
    assert canary.GROUP not in job.get("/metrics")[1]


def test_a_frozen_jvm_is_reported_as_stalled(life: Page, job: Job) -> None:
    """While the JVM is frozen and events arrive, /healthz says stalled; afterwards it says ok."""
    assert job.get("/healthz") == (200, "ok\n")
    (jvm,) = [c for c in psutil.Process(job.pid).children(recursive=True) if _is_driver(c)]
    jvm.send_signal(signal.SIGSTOP)
    try:
        until(lambda: job.get("/healthz")[0] == 503, "the stall is noticed", story=job.tail)
        assert job.get("/healthz")[1].startswith("stalled")
    finally:
        jvm.send_signal(signal.SIGCONT)
    until(lambda: job.get("/healthz") == (200, "ok\n"), "it is well again", story=job.tail)
