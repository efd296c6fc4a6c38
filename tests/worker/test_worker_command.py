"""``muster worker --exec`` as a process that is killed, frozen and stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kafka.mock_kafka import QUICK
from support.suite.waiting import PATIENCE_S
from support.worker.scripted_coordinator import ScriptedCoordinator, eventually

from muster.cli.main import main
from muster.protocol.events import Heartbeat, Join, Leave, Report
from muster.protocol.tasks import EMPTY, TaskSet


@pytest.fixture
def coordinator(mock_servers: str, request: pytest.FixtureRequest) -> Iterator[ScriptedCoordinator]:
    """A coordinator for a group named after the test; sessions are short."""
    with ScriptedCoordinator(mock_servers, request.node.name, session_timeout_ms=5_000) as scripted:
        yield scripted


class Command:
    """A running ``muster worker``."""

    def __init__(self, bootstrap: str, group: str, folder: Path, command: str, *more: str) -> None:
        settings = folder / "client.properties"
        settings.write_text("".join(f"{key}={value}\n" for key, value in QUICK.items()))
        self.log = folder / "log.jsonl"
        program = [sys.executable, "-m", "muster.cli.main", "worker", "--group", group]
        options = ["--bootstrap-server", bootstrap, "--command-config", str(settings)]
        self.process = subprocess.Popen(
            [*program, *options, "--log", str(self.log), "--exec", command, *more],
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines(self) -> list[dict]:
        """The parsed lines of its log."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def is_empty(self) -> bool:
        """Whether every started task has stopped."""
        events = [line["event"] for line in self.lines()]
        return events.count("start") == events.count("stop")

    def story(self) -> list[str]:
        """Its log as `event task` lines."""
        return [f"{line['event']} {line['task']}" for line in self.lines()]


@pytest.fixture
def command(mock_servers: str, coordinator: ScriptedCoordinator, tmp_path: Path) -> Iterator:
    """Start the command; end all its processes afterwards."""
    made: list[Command] = []

    def start(command: str, *more: str) -> Command:
        made.append(Command(mock_servers, coordinator.group, tmp_path, command, *more))
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.communicate()
        eventually(each.is_empty)


def test_it_works_until_sigterm(command, coordinator: ScriptedCoordinator) -> None:
    """A task is granted, revoked and granted; on SIGTERM the worker stops it and leaves with 0."""
    worker = command("echo $MUSTER_TASK {task}; exec sleep 600", "--member-id", "m", "--tag", "a=b")
    join = coordinator.wait_for(Join)
    assert (join.member, join.tags) == ("m", (("a", "b"),))
    coordinator.assign(join, ["0_0"])
    eventually(lambda: worker.story() == ["start 0_0"])
    coordinator.assign(join, generation=2)
    assert coordinator.wait_for(Report).holding.active == EMPTY
    assert worker.story() == ["start 0_0", "stop 0_0"]
    coordinator.assign(join, ["0_0"], generation=3)
    eventually(lambda: len(worker.story()) == 3)
    worker.process.send_signal(signal.SIGTERM)
    _, errors = worker.process.communicate(timeout=PATIENCE_S)
    assert worker.process.returncode == 0, errors
    coordinator.wait_for(Leave)
    assert worker.story()[2:] == ["start 0_0", "stop 0_0"]
    assert [line["generation"] for line in worker.lines()] == [1, 1, 3, 3]


@pytest.mark.parametrize("more", [(), ("--leave-for-good",)], ids=["for a moment", "for good"])
def test_a_worker_with_an_instance_id_leaves(
    more: tuple[str, ...], command, coordinator: ScriptedCoordinator
) -> None:
    """The group waits for its return, unless it leaves for good."""
    worker = command("exec sleep 600", "--instance-id", "i", *more)
    join = coordinator.wait_for(Join)
    coordinator.assign(join, ["0_0"])
    eventually(lambda: worker.story() == ["start 0_0"])
    worker.process.send_signal(signal.SIGTERM)
    assert coordinator.wait_for(Leave).temporary == (not more)
    _, errors = worker.process.communicate(timeout=PATIENCE_S)
    assert worker.process.returncode == 0, errors


def test_each_task_is_released_when_its_process_has_stopped(
    command, coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    """Two of three tasks stop quickly and are reported before the slow one, which stops later.

    The two are reported together, or each by itself where a machine is busy.
    """
    deaf = tmp_path / "deaf"
    slow = f"trap '' TERM; touch {deaf}; while :; do sleep 0.05; done"
    worker = command(
        f"case {{task}} in 0_1) {slow};; *) exec sleep 600;; esac", "--stop-timeout-ms", "1500"
    )
    join = coordinator.wait_for(Join)
    coordinator.assign(join, ["0_0", "0_1", "0_2"], standby=["0_3"])
    assert coordinator.wait_for(Report).holding.ready == TaskSet.of(["0_3"])
    eventually(lambda: len(worker.story()) == 3 and deaf.exists())
    coordinator.assign(join, generation=2)
    events_before = len(coordinator.events)
    slow_one = TaskSet.of(["0_1"])
    coordinator.wait_for(Report, lambda r: r.holding.active == slow_one, after=events_before)
    assert coordinator.wait_for(Report, lambda r: len(r.holding) == 0)
    reports = [e for e in coordinator.events[events_before:] if isinstance(e, Report)]
    assert len(reports) in (2, 3)
    assert all(r.revision == 2 and r.holding.active == r.holding.releasing for r in reports)
    assert [r.holding.active for r in reports[-2:]] == [slow_one, TaskSet()]
    assert (sorted(worker.story()[3:5]), worker.story()[5]) == (
        ["stop 0_0", "stop 0_2"],
        "stop 0_1",
    )


def test_sigterm_stops_all_tasks_during_a_slow_revocation(
    command, coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    """All tasks begin to stop at once; when the slow one has stopped, the worker leaves.

    The others once waited for the revocation, the command's wait did not cover both, and it ended
    without a leave.
    """
    trap = f"trap 'touch {tmp_path}/told_{{task}}' TERM; touch {tmp_path}/runs_{{task}}"
    worker = command(
        f"{trap}; until test -e {tmp_path}/may_end; do sleep 0.05; done",
        *("--stop-timeout-ms", str(int(PATIENCE_S * 1000))),
    )
    join = coordinator.wait_for(Join)
    coordinator.assign(join, ["0_0", "0_1"])
    eventually(lambda: len([*tmp_path.glob("runs_*")]) == 2)
    coordinator.assign(join, ["0_1"], generation=2)
    eventually((tmp_path / "told_0_0").exists)
    assert not (tmp_path / "told_0_1").exists()
    worker.process.send_signal(signal.SIGTERM)
    eventually((tmp_path / "told_0_1").exists)
    assert worker.story()[2:] == [], "both still stop"
    (tmp_path / "may_end").touch()
    _, errors = worker.process.communicate(timeout=PATIENCE_S)
    assert worker.process.returncode == 0, errors
    coordinator.wait_for(Leave)
    assert sorted(worker.story()[2:]) == ["stop 0_0", "stop 0_1"]


@pytest.mark.slow
def test_a_killed_worker_leaves_nothing(command, coordinator: ScriptedCoordinator) -> None:
    """After SIGKILL the guard ends the tasks within the session, from the last heartbeat."""
    worker = command("trap '' TERM; while :; do sleep 0.1; done")
    coordinator.assign(coordinator.wait_for(Join), ["0_0"])
    coordinator.wait_for(Heartbeat)
    eventually(lambda: worker.story() == ["start 0_0"])
    worker.process.kill()
    worker.process.wait()
    eventually(lambda: worker.story() == ["start 0_0", "stop 0_0"])
    last = [e for e in coordinator.events if isinstance(e, Heartbeat | Join)][-1]
    assert worker.lines()[-1]["at_ms"] < last.origin.at_ms + coordinator.session_timeout_ms


@pytest.mark.slow
def test_a_frozen_worker_loses_its_tasks_in_time(command, coordinator: ScriptedCoordinator) -> None:
    """After SIGSTOP its tasks end within the session; resumed, it rejoins and gets them again."""
    worker = command("exec sleep 600")
    join = coordinator.wait_for(Join)
    coordinator.assign(join, ["0_0"])
    coordinator.wait_for(Heartbeat)
    eventually(lambda: worker.story() == ["start 0_0"])
    worker.process.send_signal(signal.SIGSTOP)
    eventually(lambda: worker.story() == ["start 0_0", "stop 0_0"])
    last = [e for e in coordinator.events if isinstance(e, Heartbeat)][-1]
    assert worker.lines()[-1]["at_ms"] < last.origin.at_ms + coordinator.session_timeout_ms
    worker.process.send_signal(signal.SIGCONT)
    again = coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
    assert coordinator.wait_for(Leave).incarnation == join.incarnation
    coordinator.assign(again, ["0_0"], generation=2)
    eventually(lambda: worker.story() == ["start 0_0", "stop 0_0", "start 0_0"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--capacity", "0"], "capacity"),
        (["--tag", "zone"], "--tag"),
        (["--member-id", "a|b"], "member_id"),
        (["--stop-timeout-ms", "-1"], "--stop-timeout-ms"),
    ],
)
def test_bad_options(
    options: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad option is named in one line, with exit code 2."""
    log = tmp_path / "log.jsonl"
    where = ["--group", "g", "--bootstrap-server", "127.0.0.1:1", "--log", str(log)]
    assert main(["worker", *where, "--exec", "true", *options]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"muster worker: {problem}")
    assert len(errors.splitlines()) == 1
    assert not log.exists()


@pytest.mark.parametrize(
    ("given", "spoken"),
    [
        ((), ()),
        (("--connect-protocol", "compatible"), ("compatible", "eager")),
        (("--connect-protocol", "static"), ("static", "sessioned", "compatible", "eager")),
    ],
)
def test_a_worker_says_which_protocols_it_speaks(
    command, given: tuple[str, ...], spoken: tuple[str, ...], coordinator: ScriptedCoordinator
) -> None:
    """The given protocol and all below it, as Connect's workers offer them; without one, all."""
    command("exec sleep 600", *given)
    assert coordinator.wait_for(Join).protocols == spoken


def test_missing_topics_are_logged_once(command, mock_servers: str) -> None:
    """Without topics a worker logs once how to create them, and waits."""
    worker = command("exec sleep 600", "--topic-prefix", "elsewhere")
    wanted = "no topic elsewhere.assignments; create it with: muster topics create --topic-prefix "
    assert worker.process.stderr is not None
    stderr_lines = iter(worker.process.stderr.readline, "")
    assert any(wanted in line for line in stderr_lines)
    worker.process.send_signal(signal.SIGTERM)
    assert [line for line in stderr_lines if wanted in line] == []
    assert worker.process.wait(PATIENCE_S) == 0
